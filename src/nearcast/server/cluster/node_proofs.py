"""Nodes prove who they are to each other: what a node with keys does and refuses, over NATS.

Without keys nothing is proven, and whoever may use NATS is believed; then NATS must be of this
machine, or have credentials and TLS (`[network]` in the configuration).

Read next: `sealed_frames.py` (the exchange), `cluster_keys.py` (the keys).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from nearcast.config import NetworkSection
from nearcast.model.errors import MisuseError
from nearcast.model.wording import shown
from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster.cluster_keys import ClusterKeys, Signer, keys_of
from nearcast.server.cluster.nats_frames import Frames
from nearcast.server.cluster.nats_members import (
    REFRESH_S,
    TAKEN_BACK,
    DepartedMember,
    MemberRecord,
    is_signed_mark,
    key_of,
)
from nearcast.server.cluster.sealed_answers import sealed_answer
from nearcast.server.cluster.sealed_frames import NATS, SealedFrames
from nearcast.server.cluster.signed_entries import SignedEntries
from nearcast.server.log_format import RateLimited

log = logging.getLogger("nearcast.network")

_STEPS = (b"prove1", b"prove2")
PLACES_ASKED = b"places"
"""A request for the positions of a node's clients, before a first plan is shared."""
MOST_PLACES = 500
"""So many positions are answered, at most."""
_OF_ALL = (PLACES_ASKED,)  # what nodes may ask as well; only operators may ask for the rest
_AGAIN_S = 0.05


class NodeProofs:
    """The proofs of one node. `proven` is called with the name of each peer that has proven it."""

    def __init__(
        self,
        section: NetworkSection,
        name: str,
        now_ms: Callable[[], int],
        proven: Callable[[str], None],
    ) -> None:
        self.keys = keys = keys_of(section)
        if keys is not None and keys.me != Signer("node", name):
            raise MisuseError(
                f"the key of {keys.me}", where="[network] node_key", expected=f"that of node {name}"
            )
        self.sealed = None if keys is None else SealedFrames(keys)
        self.entries = SignedEntries(keys, now_ms)
        self._section, self._name, self._now_ms = section, name, now_ms
        self._is_proven = proven
        self._since_ms = now_ms()
        self._limited = RateLimited(log)
        self._running: dict[str, asyncio.Task[None]] = {}  # exchanges that this node has begun
        self._began: dict[str, int] = {}  # when each peer started, in ms

    # --- frames over NATS -------------------------------------------------------------------

    def seal(self, frames: Frames) -> Frames:
        """Return frames encrypted; without those to peers with which nothing is agreed yet."""
        if self.sealed is None:
            return frames
        sealed = [(name, self.sealed.seal(name, one, NATS)) for name, one in frames]
        return [(name, one) for name, one in sealed if one is not None]

    def open(self, sender: str, data: bytes) -> bytes | None:
        """Return the frame that a peer has sent; None if it was not the peer."""
        return data if self.sealed is None else self.sealed.open(sender, data, NATS)

    # --- members ----------------------------------------------------------------------------

    def believes(self, change: MemberRecord | DepartedMember) -> bool:
        """Return whether a mark counts, or an entry whose signature was checked (`entries`)."""
        keys, sealed = self.keys, self.sealed
        if keys is None or sealed is None:
            return True
        if isinstance(change, DepartedMember):
            return self._counts(keys, change)
        before = self._began.get(change.name)
        if before not in (None, change.started_ms) and self._name < change.name:
            sealed.forget(change.name)  # it has started again: this node begins an exchange
        self._began[change.name] = change.started_ms
        return True

    def _counts(self, keys: ClusterKeys, mark: DepartedMember) -> bool:
        """Return whether a mark counts; log one that does not."""
        counts = mark.at_ms == TAKEN_BACK or is_signed_mark(keys, mark)
        if not counts:
            name = shown(mark.name)[1:-1]
            self._limited.warning(
                "a mark that node %s has left is refused: neither the node nor an operator has "
                "signed it",
                name,
                fields={"event": "mark_refused", "node": name},
            )
        return counts

    # --- the exchange -----------------------------------------------------------------------

    def prove(self, client: NatsConnection | None, peers: Iterable[str]) -> None:
        """Begin an exchange with each peer of a greater name with which nothing is agreed."""
        sealed = self.sealed
        if sealed is None or client is None:
            return
        for name in peers:
            is_ours = self._name < name and name not in self._running
            if is_ours and sealed.knows(name) and not sealed.has(name):
                self._running[name] = asyncio.create_task(self._prove_to(client, sealed, name))

    async def _prove_to(self, client: NatsConnection, sealed: SealedFrames, name: str) -> None:
        subject = request_subject(self._section.name, name)
        try:
            first = sealed.begin(name, secrets.token_hex(16))
            answer = await client.request(subject, first, timeout=REFRESH_S)
            last = sealed.confirm(name, answer.data)
            if last is None:
                log.warning("node %s has not proven who it is", name)
                return
            await client.request(subject, last, timeout=REFRESH_S)
        except (NatsError, OSError):
            sealed.forget(name)  # it has not answered: again in a second
            return
        finally:
            self._running.pop(name, None)
        self._told(name)

    async def answers(self, message: Msg) -> bool:
        """Answer a message of an exchange; return whether it was one."""
        verb = message.data.partition(b" ")[0]
        if verb not in _STEPS:
            return False
        if self.sealed is not None and verb == b"prove1":
            answer = self.sealed.answer(message.data)
            if answer is not None:
                await message.respond(answer)
        elif self.sealed is not None:
            name = self.sealed.accept(message.data)
            if name:
                await message.respond(b"ok")
                self._told(name)
        return True

    def _told(self, name: str) -> None:
        log.info("node %s has proven who it is", name)
        self._is_proven(name)

    async def direct_key(self, name: str) -> str | None:
        """Return what a direct connection introduces itself with; None without keys."""
        sealed = self.sealed
        if sealed is None:
            return None
        while not sealed.direct_key(name):  # noqa: ASYNC110 - an exchange is under way
            await asyncio.sleep(_AGAIN_S)
        return sealed.direct_key(name)

    # --- requests ---------------------------------------------------------------------------

    def may_be_asked(self, data: bytes) -> bool:
        """Return whether a request may be answered: signed, or on a network of this machine."""
        verb, is_local = data.partition(b" ")[0], self._section.is_local or self._section.insecure
        if self.keys is None:
            is_allowed = verb != b"leave" or is_local
        elif verb == b"key":  # it is agreed on, never told
            is_allowed = False
        else:
            is_allowed = self.keys.may_ask(
                data,
                self._name,
                self._now_ms(),
                only_operators=verb not in _OF_ALL,
                since_ms=self._since_ms,
            )
        if not is_allowed:
            told: dict[str, object] = {"event": "request_refused", "request": repr(verb[:20])}
            form = "a request that nobody who may ask it has signed: %r"
            self._limited.warning(form, verb[:20], fields=told)
        return is_allowed

    def answer_to(self, data: bytes, answer: bytes) -> bytes | None:
        """Return the answer to a request, for its asker alone where keys are used."""
        keys = self.keys
        return answer if keys is None else sealed_answer(keys, data, answer)


def request_subject(network: str, name: str) -> str:
    """Return the NATS subject for requests to a node."""
    return f"nearcast.{network}.ask.{key_of(name)}"
