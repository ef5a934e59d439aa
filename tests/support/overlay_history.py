"""Seeded histories of peers that are killed and come back, and the model of what QoS 1 promises.

The model, from the definition: an event that `publisher` sends at `t` must reach each peer that

- has a box that contains the event, and had a place in the tree at some moment before `t`: from the
  root down to it, every host had it, or the host above it, as a member whose box covers it;
- lives until the end, however many hosts above it die meanwhile;

if the publisher's peer lives for `HOLD_MS` longer. No peer gets an event twice, and none gets one
that its box does not contain.

`apart` lets a peer be killed only when the tree has been repaired after the last one: what is asked
for by "no more than one relay on its way dies at a time". Otherwise the next one dies at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.support.overlay_net import SQUARE, OverlayNet

from nearcast.overlay import Settings
from nearcast.overlay.bounds import Bounds, covers
from nearcast.overlay.seat import Seat

HOLD_MS = 30_000
"""How long a publisher's peer keeps what may have to be sent again."""
_STEP_MS = 50
_MOST_REPAIR_MS = 40_000
_END_MS = 70_000


@dataclass(frozen=True, slots=True)
class Published:
    """An event, and the peers that must get it if they and its publisher live long enough."""

    payload: bytes
    publisher: str
    point: tuple[float, float]
    at: int
    due: frozenset[str]


@dataclass(slots=True)
class History:
    """A run: what was published, who was killed when, and what is wrong with the outcome."""

    net: OverlayNet
    random: Random
    boxes: dict[str, Bounds] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    killed: dict[str, int] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    starts: int = 0

    # --- what happens --------------------------------------------------------------------------

    def come(self, name: str) -> None:
        """Let a peer come, or come back: under another name, as its start has another number."""
        self.starts += 1
        whole = f"{name}/{self.starts}"
        known = self.random.sample(sorted(self.net.peers), min(2, len(self.net.peers)))
        self.boxes[whole] = _box(self.random)
        self.net.add(whole, [self.boxes[whole]], known)

    def kill(self, name: str) -> None:
        """Kill a peer."""
        self.net.kill(name)
        self.killed[name] = self.net.now
        self.placed.discard(name)

    def publish(self) -> None:
        """Let some peer that has a place publish an event at QoS 1."""
        self.note_placed()
        publisher = self.random.choice(sorted(self.placed))
        point = self.random.uniform(0, 100), self.random.uniform(0, 100)
        payload = b"%d" % len(self.published)
        due = {name for name in self.placed - {publisher} if _wants(self.boxes[name], point)}
        self.published.append(Published(payload, publisher, point, self.net.now, frozenset(due)))
        self.net.publish(publisher, point, payload, sure=True)

    def live(self, ms: int) -> None:
        """Let time pass, and events be published."""
        end = self.net.now + ms
        while self.net.now < end:
            self.net.run(min(self.random.randint(1, 4 * _STEP_MS), end - self.net.now))
            self.publish()

    def wait_until_repaired(self) -> None:
        """Let time pass until all who live are in one tree again, and know of nobody dead."""
        end = self.net.now + _MOST_REPAIR_MS
        while not self.is_repaired():
            assert self.net.now < end, "the tree was not repaired"
            self.live(2 * _STEP_MS)

    # --- what holds ----------------------------------------------------------------------------

    def seats(self) -> dict[tuple[str, int], Seat]:
        """Return all seats by address."""
        return {
            seat.address: seat
            for peer in self.net.peers.values()
            for seat in peer.core.seats.values()
        }

    def is_repaired(self) -> bool:
        """Return whether all seats are in one tree without anybody dead."""
        seats = self.seats()
        roots = [seat for seat in seats.values() if seat.parent is None]
        if len(roots) != 1:
            return False
        for seat in seats.values():
            if seat.parent is not None and seat.parent not in seats:
                return False
            if any(one not in seats for group in seat.groups for one in group.members):
                return False
        return _reached(roots[0], seats) == set(seats)

    def note_placed(self) -> None:
        """Remember who has a place by now; whoever had one once must be served from then on."""
        seats = self.seats()
        roots = [seat for seat in seats.values() if seat.parent is None]
        if not roots:
            return
        best = max((_reached(root, seats) for root in roots), key=len)
        if 2 * len(best) > len(seats):
            self.placed |= {address[0] for address in best}

    def faults(self) -> list[str]:
        """Return what the model forbids and what happened all the same."""
        found = []
        for one in self.published:
            if self.killed.get(one.publisher, 1 << 60) < one.at + HOLD_MS:
                continue
            found += [
                f"event {one.payload.decode()} of {one.publisher} at {one.at} is missing at {name}"
                for name in sorted(one.due & set(self.net.peers))
                if one.payload not in self.net.got[name]
            ]
        points = {one.payload: one.point for one in self.published}
        for name, got in self.net.got.items():
            if len(got) != len(set(got)):
                found.append(f"{name} got an event twice")
            if not all(_wants(self.boxes[name], points[payload]) for payload in got):
                found.append(f"{name} got an event that it does not want")
        return found


def lived(seed: int, *, apart: bool, settings: Settings | None = None) -> History:
    """Return a history after its end."""
    random = Random(seed)
    least, most = random.choice([(2, 3), (2, 4), (3, 6)])
    beat = random.choice([500, 1_000])
    chosen = settings or Settings(
        SQUARE,
        least=least,
        most=most,
        beat_ms=beat,
        patience_ms=beat * 7 // 2,
        retry_ms=beat * 4 // 5,
        probe_ms=beat * 10,
    )
    delay_ms = 1, random.choice([5, 40])
    notices = random.random() < 0.5
    net = OverlayNet(seed, settings=chosen, delay_ms=delay_ms, notices_ends=notices)
    history = History(net, random)
    for number in range(random.randint(6, 14)):
        history.come(f"p{number}")
        net.run(300)
    net.run(10_000)
    history.note_placed()
    for _ in range(random.randint(3, 6)):
        victim = random.choice(sorted(net.peers))
        history.kill(victim)
        if apart:
            history.live(random.randint(1, 3_000))
            history.wait_until_repaired()
        else:
            history.live(random.choice([50, 500, 2_000, 5_000]))
        history.come(victim.partition("/")[0])
        if apart:
            history.wait_until_repaired()
        history.live(random.choice([50, 500, 2_000]))
    net.run(_END_MS)
    return history


def halved(seed: int) -> History:
    """Return a history in which four of eight peers were killed at once, half a minute later."""
    random = Random(seed)
    least, most = random.choice([(2, 3), (2, 4), (3, 6)])
    settings = Settings(
        SQUARE,
        least=least,
        most=most,
        beat_ms=500,
        patience_ms=1_750,
        retry_ms=400,
        probe_ms=5_000,
    )
    net = OverlayNet(seed, settings=settings, delay_ms=(1, 40), notices_ends=seed % 2 == 0)
    history = History(net, random)
    for number in range(8):
        history.come(f"p{number}")
        net.run(300)
    net.run(10_000)
    for victim in random.sample(sorted(net.peers), 4):
        history.kill(victim)
    net.run(30_000)
    return history


def _box(random: Random) -> Bounds:
    x, y = random.uniform(0, 80), random.uniform(0, 80)
    return (x, y), (x + random.uniform(5, 60), y + random.uniform(5, 60))


def _wants(box: Bounds, point: tuple[float, float]) -> bool:
    return all(low <= x <= high for low, x, high in zip(box[0], point, box[1], strict=True))


def _reached(root: Seat, seats: dict[tuple[str, int], Seat]) -> set[tuple[str, int]]:
    """Return the seats to which an event in their box finds the way from a root."""
    found: set[tuple[str, int]] = {root.address}
    pending = [root]
    while pending:
        seat = pending.pop()
        for group in seat.groups:
            for address, entry in group.members.items():
                below = seats.get(address)
                if below is None or address in found or not covers(entry.box, below.box):
                    continue
                if below.groups and not covers(entry.box, below.entry(below.top).box):
                    continue
                found.add(address)
                pending.append(below)
    return found
