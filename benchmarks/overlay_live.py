"""Sixty peers over real sockets in one process, under churn: delivered, doubled, late, costs.

    python benchmarks/overlay_live.py [seconds [peers]]

Each peer has its own port and one box. Ten of them publish 20 events a second each, half of them at
QoS 1. Every ten seconds five peers end without a word (publishers excepted) and five others come.
Due is what a peer that lived from two seconds before the event to its end of waiting wants. A
repair takes from the deaths until all who had a place are in one tree again, without the dead.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from random import Random
from typing import Any

from nearcast.model import Attribute, Space
from nearcast.overlay.messages import Address
from nearcast.overlay.seat import Seat
from nearcast.server.overlay import Peer

SPACE = Space(
    name="field",
    topic_filter="field/#",
    attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)),
)
PEERS, PUBLISHERS, RATE, CHURN, EVERY_S = 60, 10, 20, 5, 10.0
LOOK_S = 0.05
"""How often the tree is looked at while it is repaired."""


class LivePeer:
    """A peer, its box, and what it got: the time of each first arrival, and doubles."""

    def __init__(self, random: Random, contacts: list[str]) -> None:
        self.random = random
        x, y = random.uniform(0, 90), random.uniform(0, 90)
        side = random.uniform(3, 20)
        self.box = (x, y, min(100.0, x + side), min(100.0, y + side))
        self.peer = Peer(SPACE, contact=contacts)
        self.born_s, self.died_s = float("inf"), float("inf")
        self.got: dict[int, float] = {}
        self.doubled = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.peer.__aenter__()
        west, south, east, north = self.box
        await self.peer.subscribe(where=f"x = {west}..{east} and y = {south}..{north}")
        self.born_s = time.monotonic()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.peer.events:
            number = json.loads(event.payload)["n"]
            self.doubled += number in self.got
            self.got.setdefault(number, time.monotonic())

    def crash(self) -> None:
        """End without a word, as a killed process does: all connections break."""
        self.died_s = time.monotonic()
        runtime = self.peer.runtime
        runtime._is_over = True
        if runtime._alarm is not None:
            runtime._alarm.cancel()
        links = runtime.links
        links._is_closed = True
        if links._server is not None:
            links._server.close()
        for link in list(links._all):
            link.end()

    def wants(self, x: float, y: float) -> bool:
        west, south, east, north = self.box
        return west <= x <= east and south <= y <= north


def counts(peers: list[LivePeer]) -> tuple[int, int, float]:
    """Return frames and bytes sent, and CPU seconds of the process."""
    all_counts = [one.peer.runtime.links.counts for one in peers]
    sent = sum(one.frames_sent for one in all_counts), sum(one.bytes_sent for one in all_counts)
    return *sent, time.process_time()


async def main(seconds: float, count: int) -> None:
    """Run, and print the figures of docs/peers.md."""
    random = Random(1)
    peers: list[LivePeer] = []
    began = time.monotonic()
    for _ in range(count):
        alive = [one.peer.address for one in peers]
        peers.append(LivePeer(random, random.sample(alive, min(2, len(alive)))))
        await peers[-1].start()
    print(f"{count} peers joined in {time.monotonic() - began:.1f} s")
    await asyncio.sleep(15)
    before = counts(peers)
    await asyncio.sleep(10)
    after = counts(peers)
    print(
        f"at rest: {(after[0] - before[0]) / 10 / count:.2f} messages and "
        f"{(after[1] - before[1]) / 10 / count:,.0f} bytes a peer and second, "
        f"{(after[2] - before[2]) / 10 / count * 1000:.2f} ms of CPU a peer and second"
    )
    events: list[tuple[int, float, float, float, int]] = []
    before = counts(peers)
    began = time.monotonic()
    repairs: list[float] = []
    churn = asyncio.create_task(_churn(peers, random, seconds - EVERY_S, repairs))
    await _publish(peers[:PUBLISHERS], events, random, seconds)
    took = time.monotonic() - began
    await churn
    await asyncio.sleep(35)
    after = counts(peers)
    _report(peers, events)
    print("repairs, s: " + " ".join(f"{one:.2f}" for one in sorted(repairs)))
    taken = max(1, sum(len(one.got) for one in peers))
    sent = [late - early for early, late in zip(before, after, strict=True)]
    print(
        f"{len(events)} events in {took:.0f} s; {sent[0]} messages, {sent[1]} bytes, "
        f"{sent[2]:.1f} s of CPU in all; for each of {taken} deliveries {sent[0] / taken:.1f} "
        f"messages, {sent[1] / taken:,.0f} bytes, {1000 * sent[2] / taken:.2f} ms of CPU"
    )
    for one in peers:
        one.crash()
    await asyncio.sleep(0.5)


async def _publish(
    publishers: list[LivePeer], events: list[Any], random: Random, seconds: float
) -> None:
    """Publish `RATE` events a second from each; half of them at QoS 1."""
    began = time.monotonic()
    for place in range(int(seconds * RATE)):
        for one in publishers:
            number, x, y = len(events), random.uniform(0, 100), random.uniform(0, 100)
            qos = number % 2
            events.append((number, x, y, time.monotonic(), qos))
            await one.peer.publish("field/1", {"x": x, "y": y, "n": number}, qos=qos)
        await asyncio.sleep(max(0.0, began + (place + 1) / RATE - time.monotonic()))


async def _churn(
    peers: list[LivePeer], random: Random, seconds: float, repairs: list[float]
) -> None:
    """Let some peers end without a word, and others come, every `EVERY_S` seconds."""
    publishers, watching = peers[:PUBLISHERS], list[asyncio.Task[None]]()
    churn = max(1, CHURN * len(peers) // PEERS)
    for _ in range(int(seconds / EVERY_S)):
        await asyncio.sleep(EVERY_S)
        alive = [one for one in peers if one.died_s == float("inf")]
        for victim in random.sample(alive[PUBLISHERS:], churn):
            victim.crash()
        left = [one for one in alive if one.died_s == float("inf")]
        watching.append(asyncio.create_task(_repaired(left, peers, repairs)))
        contacts = [one.peer.address for one in publishers]
        new = [LivePeer(random, random.sample(contacts, 2)) for _ in range(churn)]
        peers += new
        await asyncio.gather(*(one.start() for one in new))


async def _repaired(left: list[LivePeer], peers: list[LivePeer], repairs: list[float]) -> None:
    """Note how long it takes until these peers are in one tree again."""
    began = time.monotonic()
    while not _is_one_tree(left, peers) and time.monotonic() - began < EVERY_S:  # noqa: ASYNC110 - looked at
        await asyncio.sleep(LOOK_S)
    repairs.append(time.monotonic() - began)


def _is_one_tree(left: list[LivePeer], peers: list[LivePeer]) -> bool:
    living = [one for one in peers if one.born_s < float("inf") and one.died_s == float("inf")]
    seats = {
        seat.address: seat
        for one in living
        for seat in one.peer.runtime.members[0].core.seats.values()
    }
    names = {one.peer.runtime.name for one in left}
    roots = {_root_of(seat, seats) for seat in seats.values() if seat.address.peer in names}
    return len(roots) == 1 and None not in roots


def _root_of(seat: Seat, seats: dict[Address, Seat]) -> Address | None:
    """Return the root above a seat; None if a host on the way is dead, or does not know of it."""
    for _ in range(64):
        if seat.parent is None:
            return seat.address
        above = seats.get(seat.parent)
        if above is None or not any(seat.address in one.members for one in above.groups):
            return None
        seat = above
    return None


def _report(peers: list[LivePeer], events: list[tuple[int, float, float, float, int]]) -> None:
    end_s = time.monotonic()
    for qos in (0, 1):
        due = got = late = 0
        waits: list[float] = []
        for number, x, y, at_s, of_qos in events:
            if of_qos != qos:
                continue
            for one in peers:
                lived = one.born_s + 2 < at_s and one.died_s > min(end_s, at_s + 31)
                if lived and one.wants(x, y):
                    due += 1
                    if number in one.got:
                        got += 1
                        waits.append(one.got[number] - at_s)
                        late += waits[-1] > 1
        waits.sort()
        p99 = waits[int(0.99 * len(waits))] if waits else float("nan")
        print(f"QoS {qos}: {got} of {due} delivered, {late} after more than 1 s, p99 {p99:.2f} s")
    members = [one.peer.runtime.members[0] for one in peers]
    doubled = sum(one.doubled for one in peers)
    repeated = sum(one.acks.totals.repeated for one in members)
    unconfirmed = sum(one.acks.totals.unconfirmed for one in members)
    print(f"doubled {doubled}; repeated {repeated}; unconfirmed {unconfirmed}; {len(peers)} peers")


if __name__ == "__main__":
    given = [*map(float, sys.argv[1:]), *(300.0, PEERS)[len(sys.argv) - 1 :]]
    asyncio.run(main(given[0], int(given[1])))
