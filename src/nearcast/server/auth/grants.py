"""Rules that came with a login (a token, a hook, a plugin), kept as long as the client's session.

They are notes in the broker's journal, so that a session that comes back after a restart is judged
by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from nearcast.config import RuleSection

_PREFIX = b"grant/"
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


class Grants:
    """The rules of each user and client identifier that has logged in with some."""

    def __init__(self) -> None:
        self._rules: dict[bytes, Rules] = {}
        self.notes: Notes | None = None  # set once there is a broker

    def find(self, user: str | None, client_id: str) -> Rules:
        """Return the rules of a client; none if its login brought none or is not known."""
        key = _key(user, client_id)
        found = self._rules.get(key)
        if found is None and self.notes is not None:
            found = _decoded(self.notes.get(key, b""))
            if found:
                self._rules[key] = found
        return found or ()

    def set(self, user: str | None, client_id: str, rules: Rules, until_ms: int) -> None:
        """Keep the rules of a login, in place of those of an earlier one."""
        key = _key(user, client_id)
        self._rules[key] = rules
        if self.notes is not None:
            self.notes.set(key, _encoded(rules), until_ms)

    def drop(self, is_known: Callable[[str], bool]) -> None:
        """Forget the rules of clients that have no session any more."""
        if self.notes is None:
            return
        keys = {key for key, _ in self.notes.starting_with(_PREFIX)}
        for key in keys | set(self._rules):
            if not is_known(_client_of(key)):
                self._rules.pop(key, None)
                if key in keys:
                    self.notes.delete(key)


def _key(user: str | None, client_id: str) -> bytes:
    return _PREFIX + json.dumps([user, client_id]).encode()


def _client_of(key: bytes) -> str:
    return str(json.loads(key.removeprefix(_PREFIX))[1])


def _decoded(value: bytes) -> Rules:
    if not value:
        return ()
    try:
        return tuple(RuleSection.model_validate(one) for one in json.loads(value))
    except ValueError:  # of a later version: nothing is granted
        return ()


def _encoded(rules: Rules) -> bytes:
    return json.dumps([one.model_dump() for one in rules]).encode()
