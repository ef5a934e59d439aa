"""The keys that tokens are checked with: from a file or a URL, read again, trusted for a while."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.config import JwtSection
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server.auth.http_calls import call
from nearcast.server.auth.logins import LoginRefusedError
from nearcast.server.log_format import RateLimited

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger("nearcast.server")

_TIMEOUT_S = 5.0
_SOONEST_S = 10.0  # between two reads because of an unknown key
_SHORTEST_SECRET = 32  # bytes (RFC 7518, 3.2)
_MOST_KEYS = 100


class KeySet:
    """The keys of `[auth.jwt] keys`.

    They are read again when they are older than `refresh`, and, at most every 10 s, when a token
    names a key that is not among them: so new keys count at once. If that fails, the old keys
    count until they are older than `stale`; then none does.
    """

    def __init__(self, section: JwtSection, now_s: Callable[[], float] = time.monotonic) -> None:
        assert section.keys is not None
        self.source = section.keys
        self._section = section
        self._now_s = now_s
        self._keys: list[PyJWK] = []
        self._read_s: float | None = None  # when the keys were read
        self._tried_s: float | None = None
        self._lock = threading.Lock()
        self._limited = RateLimited(log)
        if not self.is_remote:
            self._keys, self._read_s = self._read(), now_s()  # a bad file is a mistake of now

    @property
    def is_remote(self) -> bool:
        """Whether the keys come from a URL."""
        return "://" in self.source

    def find(self, key_id: str | None) -> list[PyJWK]:
        """Return the key with an identifier, or all keys if the token names none.

        While one thread reads the keys again, others use those that count still.
        """
        found = self._named(key_id)
        if found and (self._lock.locked() or self._age_s() < self._section.refresh):
            return found
        with self._lock:
            if self._age_s() >= self._section.refresh:
                self._renew(self._section.refresh / 10)
            found = self._named(key_id)
            if not found:
                self._renew(_SOONEST_S)
                found = self._named(key_id)
        if not found:
            raise LoginRefusedError("a token with an unknown key")
        return found

    def _age_s(self) -> float:
        return float("inf") if self._read_s is None else self._now_s() - self._read_s

    def _named(self, key_id: str | None) -> list[PyJWK]:
        if self._age_s() > self._section.stale:
            return []
        if key_id is None:
            return self._keys
        return [one for one in self._keys if one.key_id in (key_id, None)]

    def _renew(self, pause_s: float) -> None:
        """Read the keys again, unless that was tried just now."""
        now_s = self._now_s()
        if self._tried_s is not None and now_s - self._tried_s < pause_s:
            return
        self._tried_s = now_s
        try:
            self._keys, self._read_s = self._read(), now_s
        except (OSError, EnvironmentProblem, FileFormatError) as problem:
            self._limited.warning(
                "the keys of tokens cannot be read (%s): %s", self.source, problem
            )

    def _read(self) -> list[PyJWK]:
        if not self.is_remote:
            try:
                text = Path(self.source).read_text("utf-8")
            except (OSError, UnicodeDecodeError) as problem:
                raise EnvironmentProblem(
                    f"the keys of tokens cannot be read ({problem})", where=self.source
                ) from None
        else:
            answer = call(self.source, timeout_s=_TIMEOUT_S)
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            text = answer.body.decode("utf-8", "replace")
        return keys_in(text, self._section.algorithms, self.source)


def keys_in(text: str, algorithms: list[Any], where: str) -> list[PyJWK]:
    """Return the keys of a key set, a PEM file or a secret."""
    import jwt

    is_secret = algorithms[0].startswith("HS")
    try:
        if text.lstrip().startswith("{"):
            entries = json.loads(text)["keys"][:_MOST_KEYS]
            return [one for one in map(_key, entries) if one is not None]
        if "-----BEGIN" in text:
            if is_secret:
                raise FileFormatError("a PEM file", where=where, expected="a secret for HS…")
            return [_pem_key(text, algorithms)]
        secret = text.strip().encode()
        if not is_secret or len(secret) < _SHORTEST_SECRET:
            raise FileFormatError(
                f"{len(secret)} bytes that are no key set and no PEM file",
                where=where,
                expected=f"one of them, or with HS… a secret of {_SHORTEST_SECRET} bytes or more",
            )
        return [jwt.PyJWK({"kty": "oct", "k": _base64url(secret)}, algorithms[0])]
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as problem:
        raise FileFormatError(
            f"no keys ({type(problem).__name__}: {problem})", where=where, expected="JWKS or PEM"
        ) from None


def _key(entry: dict[str, Any]) -> PyJWK | None:
    """Return a key of a set; None for one that is not for signatures or of an unknown kind."""
    import jwt

    if entry.get("use", "sig") != "sig":
        return None
    try:
        return jwt.PyJWK(entry)
    except jwt.PyJWTError:  # the other keys of the set serve all the same
        return None


def _pem_key(text: str, algorithms: list[Any]) -> PyJWK:
    """Return a public key of a PEM file, for the first of the algorithms that takes it."""
    import jwt

    for name in algorithms:
        algorithm = jwt.get_algorithm_by_name(name)
        try:
            found = algorithm.to_jwk(algorithm.prepare_key(text), as_dict=True)
            return jwt.PyJWK(found, name)
        except (ValueError, TypeError, jwt.PyJWTError):
            continue
    msg = f"a PEM file with no public key for {', '.join(algorithms)}"
    raise ValueError(msg)


def _base64url(data: bytes) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(data).decode().rstrip("=")
