"""`$top` over several nodes: each names its best candidates, the publishing node selects.

The connected peers are asked; a peer that disconnects before it answers does not count. Ties within
a node go to the older subscription, ties between nodes to this node, then by name. In a share group
a disconnected member gives way to the best connected one, at any node. A message of QoS 1 or 2 is
noted in the journal until the sessions of the selected subscribers have it.

In the code a `contest` is one request, and `bids` are candidates. Read next:
`nearcast/broker/content/top_k.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from nearcast.broker import Broker
from nearcast.broker.content.publish import Award
from nearcast.broker.content.top_k import Chosen
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message
from nearcast.cluster.messages import TopKCandidate, TopKReply, TopKRequest
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.model.errors import FileFormatError

PATIENCE_MS = 2_000
"""How long a request waits for answers."""
_OPEN = b"t"
_NOTED_MS = 60_000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TopKRequest).decode


@dataclass(slots=True)
class _Open:
    """A request without all answers."""

    contest: TopKRequest
    until_ms: int
    waiting: set[str]
    bids: dict[str, list[TopKCandidate]] = field(default_factory=dict)


class DistributedTopK(ClusterPart):
    """The top-k requests that this node has sent and not yet decided.

    Complexity: O(nodes + k) messages and O(nodes · k log k) work per request.
    """

    def __init__(self, name: str, node: Broker, peers: PeerRegistry) -> None:
        self._name = name
        self._node = node
        self._peers = peers
        self._open: dict[int, _Open] = {}  # by number
        self._number = 0
        self._out: list[tuple[str, TopKRequest | TopKReply]] = []  # (peer, message) to send

    def contest(self, message: Message, wish: tuple[int, str], publisher: str) -> bool:
        """Start a distributed top-k for a message; return whether there are peers to ask.

        `wish` is (k, rank).
        """
        others = [peer.name for peer in self._peers.present]
        if others:
            self.call(message, wish, publisher, others)
        return bool(others)

    def call(
        self, message: Message, wish: tuple[int, str], publisher: str, others: Iterable[str]
    ) -> None:
        """Ask the peers for their best candidates; decide at once if there are no peers.

        `wish` is (k, rank).
        """
        now_ms = self._node.now_ms
        self._number = max(self._number + 1, now_ms << 10)
        contest = TopKRequest(self._number, *wish, publisher, encode_message(message))
        if message.head.qos:
            key = _OPEN + self._number.to_bytes(8, "big")
            self._node.notes.set(key, _encode(contest), now_ms + _NOTED_MS)
        self._begin(contest, others, now_ms)

    def _begin(self, contest: TopKRequest, others: Iterable[str], now_ms: int) -> None:
        names = set(others)
        self._open[contest.number] = _Open(contest, now_ms + PATIENCE_MS, names)
        self._out += [(name, contest) for name in sorted(names)]
        if not names:
            self._decide(contest.number)

    @handles(TopKRequest)
    def asked(self, peer: PeerNode, contest: TopKRequest) -> None:
        """Answer a peer's request with the best candidates of this node."""
        self._out.append((peer.name, TopKReply(contest.number, self._own_bids(contest))))

    def _own_bids(self, contest: TopKRequest) -> list[TopKCandidate]:
        chosen = self._node.bids(_message(contest), contest.most, contest.rank, contest.publisher)
        return [_bid(one) for one in chosen]

    @handles(TopKReply)
    def told(self, peer: PeerNode, bids: TopKReply) -> None:
        """Handle a peer's candidates; decide if they were the last."""
        one = self._open.get(bids.number)
        if one is not None:
            one.bids[peer.name] = bids.bids
            one.waiting.discard(peer.name)
            if not one.waiting:
                self._decide(bids.number)

    def peer_down(self, peer: PeerNode) -> None:
        """Stop waiting for a peer that has disconnected."""
        for number, one in list(self._open.items()):
            one.waiting.discard(peer.name)
            if not one.waiting:
                self._decide(number)

    def advance(self, now_ms: int) -> None:
        """Decide requests whose time is over, without the missing answers."""
        for number, one in list(self._open.items()):
            if one.until_ms <= now_ms:
                self._decide(number)

    def wake_at(self) -> int | None:
        """Return when the next decision is due."""
        return min((one.until_ms for one in self._open.values()), default=None)

    def restored(self, now_ms: int) -> None:
        """Reopen requests that a crash left undecided; peers are asked as they connect."""
        for key, value in self._node.notes.starting_with(_OPEN):
            try:
                contest = _decode(value)
                _message(contest)
            except (msgspec.MsgspecError, FileFormatError) as problem:
                self._node.notes.set_aside(key, problem)
                continue
            self._open[contest.number] = _Open(contest, now_ms + PATIENCE_MS, {self._name})

    def peer_up(self, peer: PeerNode) -> None:
        """Send the requests reopened after a crash to a peer that has connected."""
        for one in self._open.values():
            if self._name in one.waiting and peer.name not in one.bids:
                self._out.append((peer.name, one.contest))

    @property
    def is_pending(self) -> bool:
        """Whether any request is undecided."""
        return bool(self._open)

    def settle(self) -> None:
        """Queue the requests and replies of the batch for their peers."""
        if self._out:
            out, self._out = self._out, []
            for name, message in out:
                self._peers.tell_named(name, message)

    def _decide(self, number: int) -> None:
        contest, bids = (one := self._open.pop(number)).contest, dict(one.bids)
        message = _message(contest)
        bids[self._name] = self._own_bids(contest)
        chosen: dict[str, list[Award]] = {}
        for place, (name, bid) in enumerate(self._winners(bids, contest.most), start=1):
            chosen.setdefault(name, []).append((bid.number, place, bid.distance_m))
        for name, awards in chosen.items():
            if name == self._name:
                self._node.award(message, awards)
            else:
                self._node.peering.send_award(name, message, awards)
        if message.head.qos:
            self._node.notes.delete(_OPEN + number.to_bytes(8, "big"))

    def _winners(
        self, bids: Mapping[str, list[TopKCandidate]], most: int
    ) -> list[tuple[str, TopKCandidate]]:
        """Return the best units, best first: a unit is a client, or one member of a share group."""
        units: dict[tuple[str, str], list[tuple[str, TopKCandidate]]] = {}
        for name, bid in sorted(
            ((name, bid) for name, some in bids.items() for bid in some),
            key=lambda pair: (pair[1].score, *self._before(pair[0]), pair[1].age),
        ):
            unit = ("", bid.group) if bid.group else (name, bid.client)
            units.setdefault(unit, []).append((name, bid))
        return [self._reader(some) for some in list(units.values())[:most]]

    def _reader(self, group: list[tuple[str, TopKCandidate]]) -> tuple[str, TopKCandidate]:
        """Return the best connected member; if none is connected, the best."""
        present = [pair for pair in group if not pair[1].is_away]
        return min(
            present, key=lambda pair: (_own(pair[1]), *self._before(pair[0])), default=group[0]
        )

    def _before(self, name: str) -> tuple[bool, str]:
        """Return the sort key of a node among equal scores: this node first."""
        return (name != self._name, name)


def _own(bid: TopKCandidate) -> float:
    return bid.score if bid.own is None else bid.own


def _message(contest: TopKRequest) -> Message:
    message = decode_message(contest.message)
    message.number = 0
    return message


def _bid(chosen: Chosen) -> TopKCandidate:
    candidate = chosen.candidate
    standing = chosen.standing or candidate
    one = candidate.subscription
    return TopKCandidate(
        standing.score,
        standing.birth_number,
        one.number,
        one.session.client_id,
        f"{one.group}/{one.topic_filter}" if one.group else "",
        candidate.distance_m,
        one.session.link is None,
        None if candidate == standing else candidate.score,
    )
