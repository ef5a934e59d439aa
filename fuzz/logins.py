"""Feed PROXY headers, tokens and SCRAM messages that are nearly right to what reads them.

    python fuzz/logins.py --rounds 200000

Nothing may raise anything but the refusal that belongs to it, and nothing may be accepted that was
changed. Mutations: bytes flipped, cut, repeated, joined with others.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import jwt

from nearcast.broker import Connection, LoginVerdict
from nearcast.config import JwtSection
from nearcast.model.errors import PeerProtocolError
from nearcast.server.auth.logins import LoginRefusedError, LoginRequest
from nearcast.server.auth.passwords import scram_keys
from nearcast.server.auth.scram import ScramExchange
from nearcast.server.auth.tokens import TokenLogins
from nearcast.server.listeners.proxy_header import read_header, wanted_bytes

SECRET = "s" * 40
HEADERS = [
    b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 1883\r\n",
    b"PROXY TCP6 2001:db8::7 ::1 4711 1883\r\n",
    b"PROXY UNKNOWN\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(range(12)),
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24" + bytes(range(36)),
]
MESSAGES = [b"n,,n=ann,r=abc", b"c=biws,r=abcsrv,p=AAAA", b"y,,n=a=2Cb,r=x"]


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return bytes that were changed in a few places."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[place : place + rng.randrange(1, 8)]
        elif kind == 2:
            changed[place:place] = rng.choice(others)[: rng.randrange(40)]
        else:
            changed[place:place] = rng.randbytes(rng.randrange(1, 8))
    return bytes(changed)


def try_header(data: bytes) -> None:
    try:
        found = read_header(data)
    except PeerProtocolError:
        return
    if found is None:
        assert wanted_bytes(data) > len(data), data
    else:
        assert 0 < found.size <= len(data), data


def try_token(logins: TokenLogins, token: bytes, good: bytes) -> None:
    try:
        answer = logins.check(LoginRequest("c", None, token, "", "0"))
    except LoginRefusedError:
        return
    # The last character of a signature has bits that do not count: the same bytes, written twice.
    assert answer is None or token[:-1] == good[:-1], token


def try_scram(data: bytes) -> None:
    keys = {"ann": scram_keys("pw", b"salt", 1)}
    exchange = ScramExchange(
        keys.get, lambda _u, verdict, _c: verdict, Connection(), secret=b"s", nonce="srv"
    )
    for one in (data, MESSAGES[1], data):
        step = exchange.step(one)
        assert step.verdict is not LoginVerdict.WELCOME, data
        if step.verdict is not None:
            return


def main() -> None:
    """Run the rounds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "secret"
        path.write_text(SECRET)
        logins = TokenLogins(JwtSection(keys=str(path), algorithms=["HS256"]))
    good = jwt.encode({"sub": "ann", "exp": time.time() + 86_400}, SECRET, "HS256").encode()
    for _ in range(options.rounds):
        try_header(mutated(rng.choice(HEADERS), HEADERS, rng))
        try_token(logins, mutated(good, [good, b"eyJhbGciOiJub25lIn0"], rng), good)
        try_scram(mutated(rng.choice(MESSAGES), MESSAGES, rng))
    print(f"{options.rounds} rounds: nothing was accepted, nothing broke")


if __name__ == "__main__":
    main()
