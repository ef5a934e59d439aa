"""SCRAM-SHA-256 (RFC 5802, RFC 7677) as enhanced authentication of MQTT 5: the broker's side.

The password never travels, and the client learns that the broker knows it, too. Channel binding is
not offered.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from nearcast.broker import Connection
from nearcast.broker.access import ExchangeStep, LoginVerdict
from nearcast.server.auth.passwords import ScramKeys

METHOD = "SCRAM-SHA-256"
_DEFAULT_ITERATIONS = 100_000
_LONGEST = 1_024  # bytes of a client's message
_WRONG = ExchangeStep(verdict=LoginVerdict.WRONG_PASSWORD)
Settle = Callable[[str, LoginVerdict, Connection], LoginVerdict]


class ScramError(ValueError):
    """A message that is no SCRAM message, or one that asks for what is not offered."""


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message: its user, its nonce, and the parts that are signed later."""

    header: str
    bare: str
    user: str
    nonce: str


def read_first(data: bytes) -> ClientFirst:
    """Return the first message of a client; ScramError if it is none."""
    text = _text(data)
    flag, _, rest = text.partition(",")
    authority, _, bare = rest.partition(",")
    if flag not in ("n", "y"):  # p=: with channel binding
        raise ScramError("channel binding")
    if authority:  # acting for somebody else
        raise ScramError("an authorisation identity")
    parts = bare.split(",")
    if len(parts) < 2 or not parts[0].startswith("n=") or not parts[1].startswith("r="):
        raise ScramError("no n= and r=")  # an m= before them: an extension that we must know
    nonce = parts[1][2:]
    if not nonce or not nonce.isprintable():
        raise ScramError("no nonce")
    return ClientFirst(f"{flag},{authority},", bare, _user(parts[0][2:]), nonce)


def _text(data: bytes) -> str:
    if len(data) > _LONGEST:
        raise ScramError(f"{len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise ScramError("bytes that are no UTF-8") from problem


def _user(text: str) -> str:
    """Return a name without its escapes: =2C is a comma, =3D an equals sign."""
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise ScramError("an escape")
    name = text.replace("=2C", ",").replace("=3D", "=")
    if not name:
        raise ScramError("no user")
    return name


class ScramExchange:
    """One login. An unknown user is refused at the end, as a wrong password is.

    `keys_of` returns the keys of a user or None; `settle` may turn the verdict into another one
    (bans, guesses); `secret` makes the salts of unknown users, always the same for one name.
    """

    def __init__(
        self,
        keys_of: Callable[[str], ScramKeys | None],
        settle: Settle,
        connection: Connection,
        *,
        secret: bytes,
        nonce: str,
    ) -> None:
        self._keys_of = keys_of
        self._settle = settle
        self._connection = connection
        self._secret = secret
        self._nonce = nonce
        self._first: ClientFirst | None = None
        self._signed = ""  # the first messages, that of the client and ours
        self._is_empty = False  # the client has sent no data yet

    def step(self, data: bytes) -> ExchangeStep:
        """Return the answer to the client's next message."""
        try:
            if self._first is None:
                return self._begin(data)
            return self._finish(self._first, data)
        except ScramError:
            return _WRONG

    def _begin(self, data: bytes) -> ExchangeStep:
        if not data and not self._is_empty:  # a CONNECT without data: the client begins now
            self._is_empty = True
            return ExchangeStep()
        self._first = first = read_first(data)
        self._nonce = first.nonce + self._nonce
        keys = self._keys_of(first.user)
        salt = keys.salt if keys is not None else self._salt_of_nobody(first.user)
        iterations = keys.iterations if keys is not None else _DEFAULT_ITERATIONS
        answer = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        self._signed = f"{first.bare},{answer}"
        return ExchangeStep(answer.encode())

    def _salt_of_nobody(self, user: str) -> bytes:
        return hmac.digest(self._secret, user.encode(), "sha256")[:16]

    def _finish(self, first: ClientFirst, data: bytes) -> ExchangeStep:
        bare, _, proof = _text(data).rpartition(",p=")
        parts = bare.split(",")
        binding = base64.b64encode(first.header.encode()).decode()
        if parts[:2] != [f"c={binding}", f"r={self._nonce}"]:
            raise ScramError("another binding or nonce")
        keys = self._keys_of(first.user)
        signed = f"{self._signed},{bare}".encode()
        is_right = keys is not None and _proves(keys, signed, proof)
        verdict = LoginVerdict.WELCOME if is_right else LoginVerdict.WRONG_PASSWORD
        verdict = self._settle(first.user, verdict, self._connection)
        if verdict is not LoginVerdict.WELCOME or keys is None:
            return ExchangeStep(verdict=verdict)
        signature = hmac.digest(keys.server_key, signed, "sha256")
        return ExchangeStep(b"v=" + base64.b64encode(signature), LoginVerdict.WELCOME)


def _proves(keys: ScramKeys, signed: bytes, proof: str) -> bool:
    """Return whether a client's proof needs the password of these keys (RFC 5802, 3)."""
    try:
        given = base64.b64decode(proof, validate=True)
    except ValueError:
        return False
    signature = hmac.digest(keys.stored_key, signed, "sha256")
    if len(given) != len(signature):
        return False
    client_key = bytes(one ^ other for one, other in zip(given, signature, strict=True))
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored_key)
