"""`$top` over several nodes: each names its best, the node of publication chooses, and tells them.

The nodes that are there are asked; what one that goes down meanwhile would have said does not
count. Between equals of one node the older subscription comes first, between nodes their names.
In a share group, who is away gives way to the best one who is connected, at whatever node.
A message of QoS 1 or 2 is noted in the journal until those chosen have it in their sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from nearcast.model.errors import FileFormatError
from nearcast.network.messages import Bid, Bids, Contest
from nearcast.node import Node
from nearcast.node.choosing import Chosen
from nearcast.node.journal import decode_message, encode_message
from nearcast.node.message import Message
from nearcast.node.selective import Award

PATIENCE_MS = 2_000
_OPEN = b"t"
_NOTED_MS = 60_000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Contest).decode


@dataclass(slots=True)
class _Open:
    contest: Contest
    until_ms: int
    waiting: set[str]
    bids: dict[str, list[Bid]] = field(default_factory=dict)


class Contests:
    """The contests that this node has called and not yet decided.

    Complexity: O(nodes + k) messages and O(nodes · k log k) work a contest.
    """

    def __init__(self, name: str, node: Node) -> None:
        self._name = name
        self._node = node
        self._open: dict[int, _Open] = {}
        self._number = 0
        self._out: list[tuple[str, Contest | Bids]] = []

    def call(
        self, message: Message, wish: tuple[int, str], publisher: str, others: Iterable[str]
    ) -> None:
        """Ask the other nodes for their best; decide at once if there are none."""
        now_ms = self._node.state.now_ms
        self._number = max(self._number + 1, now_ms << 10)
        contest = Contest(self._number, *wish, publisher, encode_message(message))
        if message.head.qos:
            key = _OPEN + self._number.to_bytes(8, "big")
            self._node.state.set_note(key, _encode(contest), now_ms + _NOTED_MS)
        self._begin(contest, others, now_ms)

    def _begin(self, contest: Contest, others: Iterable[str], now_ms: int) -> None:
        names = set(others)
        self._open[contest.number] = _Open(contest, now_ms + PATIENCE_MS, names)
        self._out += [(name, contest) for name in sorted(names)]
        if not names:
            self._decide(contest.number)

    def asked(self, name: str, contest: Contest) -> None:
        """Name the best of this node's clients to another node."""
        self._out.append((name, Bids(contest.number, self._own_bids(contest))))

    def _own_bids(self, contest: Contest) -> list[Bid]:
        chosen = self._node.bids(_message(contest), contest.most, contest.rank, contest.publisher)
        return [_bid(one) for one in chosen]

    def told(self, name: str, bids: Bids) -> None:
        """Take in the best of another node; decide if it was the last."""
        one = self._open.get(bids.number)
        if one is not None:
            one.bids[name] = bids.bids
            one.waiting.discard(name)
            if not one.waiting:
                self._decide(bids.number)

    def gone(self, name: str) -> None:
        """Wait for a node no longer."""
        for number, one in list(self._open.items()):
            one.waiting.discard(name)
            if not one.waiting:
                self._decide(number)

    def advance(self, now_ms: int) -> None:
        """Decide without those who have not answered in time."""
        for number, one in list(self._open.items()):
            if one.until_ms <= now_ms:
                self._decide(number)

    def wake_at(self) -> int | None:
        """Say when a decision is due."""
        return min((one.until_ms for one in self._open.values()), default=None)

    def restored(self, now_ms: int) -> None:
        """Call those again that a crash left undecided; it is known later who is there."""
        for key, (_, value) in list(self._node.state.notes.items()):
            if key[:1] == _OPEN:
                try:
                    contest = _decode(value)
                    _message(contest)
                except (msgspec.MsgspecError, FileFormatError) as problem:
                    self._node.state.set_note_aside(key, problem)
                    continue
                self._open[contest.number] = _Open(contest, now_ms + PATIENCE_MS, {self._name})

    def came_up(self, name: str) -> None:
        """Ask a node that has come back for contests that were open before a crash."""
        for one in self._open.values():
            if self._name in one.waiting and name not in one.bids:
                self._out.append((name, one.contest))

    @property
    def is_open(self) -> bool:
        """Whether any contest is undecided."""
        return bool(self._open)

    def take(self) -> list[tuple[str, Contest | Bids]]:
        """Return what is to travel."""
        out, self._out = self._out, []
        return out

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
            self._node.state.set_note(_OPEN + number.to_bytes(8, "big"), b"", 0)

    def _winners(self, bids: Mapping[str, list[Bid]], most: int) -> list[tuple[str, Bid]]:
        """Return the best, best first: clients, and for each share group one member."""
        units: dict[tuple[str, str], list[tuple[str, Bid]]] = {}
        for name, bid in sorted(
            ((name, bid) for name, some in bids.items() for bid in some),
            key=lambda pair: (pair[1].score, *self._before(pair[0]), pair[1].age),
        ):
            unit = ("", bid.group) if bid.group else (name, bid.client)
            units.setdefault(unit, []).append((name, bid))
        return [self._reader(some) for some in list(units.values())[:most]]

    def _reader(self, group: list[tuple[str, Bid]]) -> tuple[str, Bid]:
        """Return the best one who is connected; if nobody is, the best."""
        present = [pair for pair in group if not pair[1].is_away]
        return min(
            present, key=lambda pair: (_own(pair[1]), *self._before(pair[0])), default=group[0]
        )

    def _before(self, name: str) -> tuple[bool, str]:
        """Return the place of a node between equals: this one first."""
        return (name != self._name, name)


def _own(bid: Bid) -> float:
    return bid.score if bid.own is None else bid.own


def _message(contest: Contest) -> Message:
    message = decode_message(contest.message)
    message.number = 0
    return message


def _bid(chosen: Chosen) -> Bid:
    candidate = chosen.candidate
    standing = chosen.standing or candidate
    one = candidate.subscription
    return Bid(
        standing.score,
        standing.age,
        one.number,
        one.session.client_id,
        f"{one.group}/{one.topic_filter}" if one.group else "",
        candidate.distance_m,
        one.session.link is None,
        None if candidate == standing else candidate.score,
    )
