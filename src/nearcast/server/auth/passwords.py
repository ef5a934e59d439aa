"""Password files: a line per user with hashes of its password, written atomically, for its owner.

A line is `name:HASH` or `name:HASH HASH`. A hash is `scrypt$N$r$p$salt$key`, for passwords that the
client sends, or `scram-sha-256$iterations$salt$stored$server` (RFC 5803), for enhanced
authentication, which sends none; it serves for sent passwords as well.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stringprep
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from nearcast.model.errors import FileFormatError, MisuseError

_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1  # 16 MiB and about 50 ms per check
_ITERATIONS = 100_000  # the client computes them at each login: about 50 ms
_FEWEST_ITERATIONS = 4_096  # RFC 7677
_MOST_COST, _MOST_ITERATIONS = 1 << 20, 10_000_000
_FORBIDDEN_TABLES = (
    *(stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3),
    *(stringprep.in_table_c4, stringprep.in_table_c5, stringprep.in_table_c6),
    *(stringprep.in_table_c7, stringprep.in_table_c8, stringprep.in_table_c9),
)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What the broker knows of a password for SCRAM: enough to check it, not to log in with it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def hash_password(password: bytes, salt: bytes | None = None) -> str:
    """Return `scrypt$N$r$p$salt$key` for a password file."""
    salt = os.urandom(16) if salt is None else salt
    key = hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, dklen=32)
    words = [base64.b64encode(one).decode() for one in (salt, key)]
    return "$".join(("scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), *words))


def prepared(password: str) -> str:
    r"""Return a password as SCRAM compares it (SASLprep, RFC 4013); ValueError if it cannot be.

    >>> prepared("a\u00a0b\u00ad")
    'a b'
    """
    mapped = (" " if stringprep.in_table_c12(one) else one for one in password)
    text = "".join(one for one in mapped if not stringprep.in_table_b1(one))
    text = unicodedata.ucd_3_2_0.normalize("NFKC", text)
    if any(is_forbidden(one) for is_forbidden in _FORBIDDEN_TABLES for one in text):
        msg = "a character that SASLprep forbids"
        raise ValueError(msg)
    return text


def scram_keys(password: str, salt: bytes, iterations: int = _ITERATIONS) -> ScramKeys:
    """Return the keys of a password (RFC 5802, 3); slow by design."""
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    return ScramKeys(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", "sha256"))


def scram_hash(password: bytes) -> str:
    """Return `scram-sha-256$iterations$salt$stored$server` for a password file."""
    try:
        keys = scram_keys(password.decode(), os.urandom(16))
    except ValueError:
        raise MisuseError(
            "a password with bytes or characters that SCRAM forbids", expected="printable text"
        ) from None
    parts = (keys.salt, keys.stored_key, keys.server_key)
    words = [base64.b64encode(one).decode() for one in parts]
    return "$".join(("scram-sha-256", str(keys.iterations), *words))


def keys_of(stored: str) -> ScramKeys | None:
    """Return the SCRAM keys among a user's hashes; None if there are none."""
    for one in stored.split():
        if one.startswith("scram-sha-256$"):
            _, iterations, *words = one.split("$")
            return ScramKeys(int(iterations), *(base64.b64decode(word) for word in words))
    return None


def is_password(password: bytes, stored: str) -> bool:
    """Return whether a user's hashes are those of this password; about 50 ms by design."""
    first = stored.split(maxsplit=1)[0]
    if first.startswith("scram-sha-256$"):
        return _is_scram_password(password, first)
    _, cost, block, parallel, salt, key = first.split("$")
    found = hashlib.scrypt(
        password, salt=base64.b64decode(salt), n=int(cost), r=int(block), p=int(parallel), dklen=32
    )
    return hmac.compare_digest(found, base64.b64decode(key))


def _is_scram_password(password: bytes, stored: str) -> bool:
    keys = keys_of(stored)
    assert keys is not None
    try:
        found = scram_keys(password.decode(), keys.salt, keys.iterations)
    except ValueError:
        return False
    return hmac.compare_digest(found.stored_key, keys.stored_key)


def read_users(path: Path) -> dict[str, str]:
    """Return the hashes of each user in a password file (`name:hash` per line, # for comments)."""
    users: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, stored = line.partition(":")
        hashes = stored.split()
        if not colon or not name or not hashes or not all(_is_hash(one) for one in hashes):
            raise FileFormatError(
                f"line {number}",
                where=str(path),
                expected="name:scrypt$…",
                todo="Write the file with `nearcast passwd`.",
            )
        users[name] = stored.strip()
    return users


def _is_hash(text: str) -> bool:
    """Return whether a hash has its form: a line that could not be checked is no line."""
    kind, *words = text.split("$")
    try:
        numbers = [int(one) for one in words[: 3 if kind == "scrypt" else 1]]
        parts = [base64.b64decode(one, validate=True) for one in words[len(numbers) :]]
    except ValueError:
        return False
    if kind == "scrypt":
        cost = numbers[0] if len(numbers) == 3 else 0
        is_power = cost > 1 and not cost & (cost - 1)
        return len(words) == 5 and is_power and cost <= _MOST_COST and all(numbers) and all(parts)
    is_bound = bool(numbers) and _FEWEST_ITERATIONS <= numbers[0] <= _MOST_ITERATIONS
    return kind == "scram-sha-256" and len(words) == 4 and is_bound and all(parts)


def set_password(
    path: Path, name: str, password: bytes | None, *, with_scram: bool = False
) -> None:
    """Add or change a user in a password file, or remove one (password None); atomic."""
    if not name or ":" in name or "\n" in name:
        raise MisuseError(repr(name), where="user name", expected="text without : and line ends")
    users = read_users(path) if path.exists() else {}
    if password is None:
        users.pop(name, None)
    else:
        scram = f" {scram_hash(password)}" if with_scram else ""
        users[name] = hash_password(password) + scram
    lines = (f"{one}:{stored}\n" for one, stored in sorted(users.items()))
    write_private(path, "".join(lines).encode())


def write_private(path: Path, data: bytes, *, is_synced: bool = True) -> None:
    """Replace a file atomically; only its owner may read it.

    Not synced, it takes no disk's time; after a power cut the file may be the one before, or empty.
    """
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # a draft that was there already keeps its mode
        file.write(data)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
