"""Rules that came with a login (a token, a hook, a plugin), kept as long as the client's session.

They are notes in the broker's journal, so that a session that comes back after a restart is judged
by them. A node that relays a client to its session at another node forwards them with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nearcast.config import RuleSection

_PREFIX = b"grant/"
_FOREVER_MS = 1 << 62  # `drop` ends a grant, with its session: without one, more could be allowed
Rules = tuple[RuleSection, ...]


class Notes(Protocol):
    """The broker's notes, as far as grants need them."""

    def get(self, key: bytes, default: bytes) -> bytes:
        """Return the value of a key."""

    def set(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Journal a value."""

    def delete(self, key: bytes) -> None:
        """Journal that a key has no value any more."""

    def starting_with(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return keys and values."""


@dataclass(frozen=True, slots=True)
class LoginGrant:
    """The rules of a login; beyond them only configured rules allow something.

    `is_forwarded`: another node has checked the login, and this one need not know how.
    """

    rules: Rules
    is_forwarded: bool = False

    def to_bytes(self) -> bytes:
        """Return it as the value of a note."""
        rules = json.loads(rules_text(self.rules))
        return json.dumps({"forwarded": rules} if self.is_forwarded else rules).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> LoginGrant:
        """Return what `to_bytes` wrote; rules that cannot be read grant nothing."""
        try:
            found = json.loads(value)
        except ValueError:
            return cls((), is_forwarded=True)
        if isinstance(found, dict):
            return cls(_rules(found.get("forwarded")), is_forwarded=True)
        return cls(_rules(found))


class Grants:
    """The rules of each user and client identifier that has logged in with some."""

    def __init__(self) -> None:
        self._grants: dict[bytes, LoginGrant] = {}
        self.notes: Notes | None = None  # set once there is a broker

    def find(self, user: str | None, client_id: str) -> LoginGrant | None:
        """Return the grant of a client; None if its login brought none or is not known."""
        key = _key(user, client_id)
        found = self._grants.get(key)
        if found is None and self.notes is not None:
            value = self.notes.get(key, b"")
            if value:
                found = self._grants[key] = LoginGrant.from_bytes(value)
        return found

    def set(self, user: str | None, client_id: str, grant: LoginGrant | None) -> bool:
        """Keep the grant of a login in place of an earlier one; return whether it is another."""
        if grant == self.find(user, client_id):
            return False
        key = _key(user, client_id)
        self._grants.pop(key, None)
        if grant is not None:
            self._grants[key] = grant
        if self.notes is not None and grant is not None:
            self.notes.set(key, grant.to_bytes(), _FOREVER_MS)
        elif self.notes is not None:
            self.notes.delete(key)
        return True

    def drop(self, is_known: Callable[[str], bool]) -> None:
        """Forget the rules of clients that have no session any more."""
        if self.notes is None:
            return
        keys = {key for key, _ in self.notes.starting_with(_PREFIX)}
        for key in keys | set(self._grants):
            if not is_known(_client_of(key)):
                self._grants.pop(key, None)
                if key in keys:
                    self.notes.delete(key)


def rules_text(rules: Rules) -> bytes:
    """Return rules as nodes forward them."""
    return json.dumps([one.model_dump() for one in rules]).encode()


def rules_in(text: bytes) -> Rules:
    """Return the rules of `rules_text`; none, so that nothing is granted, if they are not."""
    try:
        return _rules(json.loads(text))
    except ValueError:
        return ()


def _rules(found: object) -> Rules:
    """Return decoded rules; none if one of them is of a later version, or is no rule."""
    try:
        return tuple(RuleSection.model_validate(one) for one in found)  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        return ()


def _key(user: str | None, client_id: str) -> bytes:
    return _PREFIX + json.dumps([user, client_id]).encode()


def _client_of(key: bytes) -> str:
    return str(json.loads(key.removeprefix(_PREFIX))[1])
