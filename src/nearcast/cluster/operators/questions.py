"""Questions of an operator at one node that other nodes can answer: about their clients, say.

    node of the page                     each other node
       │ ─── OperatorQuestion ───────────►  │   asks its own HTTP API
       │ ◄── OperatorAnswer ──────────────  │   empty: it has nothing to say

A question ends when all peers that were connected have answered, or after `PATIENCE_MS`.

Read next: `nearcast/server/cluster/node_requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from nearcast.cluster.messages import OperatorAnswer, OperatorQuestion
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry

PATIENCE_MS = 2_000
"""How long a question waits for answers."""
Answers = dict[str, bytes]
"""What nodes have answered, by name."""
Responder = Callable[[bytes, Callable[[bytes], None]], None]
"""Takes a peer's question, and what is to be called with the answer, now or later."""


@dataclass(slots=True)
class _Open:
    """A question without all answers."""

    done: Callable[[Answers], None]
    until_ms: int
    waiting: set[str]
    answers: Answers = field(default_factory=dict)


class OperatorQuestions(ClusterPart):
    """The questions that this node has asked, and who answers those of others.

    Complexity: O(nodes) messages per question, nothing without one.
    """

    def __init__(self, peers: PeerRegistry) -> None:
        self._peers = peers
        self._open: dict[int, _Open] = {}  # by number
        self._number = 0
        self.responder: Responder | None = None  # None: this node has no HTTP API

    def ask(self, question: bytes, done: Callable[[Answers], None], now_ms: int) -> None:
        """Ask all connected peers; `done` is called once, with the answers that came in time."""
        self._number = max(self._number + 1, now_ms << 10)  # no answer to an earlier run fits
        names = [
            peer.name for peer in self._peers.present if OperatorQuestion.since <= peer.version
        ]
        if not names:
            done({})
            return
        self._open[self._number] = _Open(done, now_ms + PATIENCE_MS, set(names))
        for name in names:
            self._peers.tell_named(name, OperatorQuestion(self._number, question))

    @handles(OperatorQuestion)
    def asked(self, peer: PeerNode, message: OperatorQuestion) -> None:
        """Answer a peer's question, now or later."""
        answer = partial(self._answer, peer.name, message.number)
        if self.responder is None:
            answer(b"")
        else:
            self.responder(message.question, answer)

    def _answer(self, name: str, number: int, answer: bytes) -> None:
        self._peers.tell_named(name, OperatorAnswer(number, answer))

    @handles(OperatorAnswer)
    def answered(self, peer: PeerNode, message: OperatorAnswer) -> None:
        """Keep a peer's answer; the last one ends the question."""
        one = self._open.get(message.number)
        if one is not None and peer.name in one.waiting:
            one.answers[peer.name] = message.answer
            self._wait_no_more(message.number, peer.name)

    def peer_down(self, peer: PeerNode) -> None:
        """Stop waiting for a peer that has disconnected."""
        for number in list(self._open):
            self._wait_no_more(number, peer.name)

    def _wait_no_more(self, number: int, name: str) -> None:
        one = self._open[number]
        one.waiting.discard(name)
        if not one.waiting:
            self._end(number)

    def _end(self, number: int) -> None:
        one = self._open.pop(number)
        one.done(one.answers)

    def advance(self, now_ms: int) -> None:
        """End questions whose time is over, without the missing answers."""
        for number, one in list(self._open.items()):
            if one.until_ms <= now_ms:
                self._end(number)

    def wake_at(self) -> int | None:
        """Return when the next question ends."""
        return min((one.until_ms for one in self._open.values()), default=None)
