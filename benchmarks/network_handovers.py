"""Handovers between real nodes: how long one takes, how many there can be, for `network.py`.

The plan gives each quarter of a square to another node; people go back and forth over the border
between two of them. *Latency*: something is published on either side every two milliseconds through
the node that holds it; a handover has taken as long as it is from the client's position update
until the first event of the new place, the wait for the next event included. *Rate*: many clients
on all nodes cross at once, as quickly as the nodes take it; at the end the event of every place
must reach just those who are there.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.broker_load import framed, link, read_packet, string
from benchmarks.network_nodes import Nodes

from nearcast.cluster import NamedPlan
from nearcast.config import NetworkSection
from nearcast.locality import CellCounts, Plan
from nearcast.server.cluster.nats_admin import share_plan

SPACE: dict[str, Any] = {
    "name": "square",
    "topics": "square/#",
    "longitude": "lon",
    "latitude": "lat",
    "attributes": {"lon": {"low": -180.0, "high": 180.0}, "lat": {"low": -90.0, "high": 90.0}},
}
PLACES = [(-0.06, -0.5), (0.06, -0.5), (-0.06, 0.5), (0.06, 0.5)]  # 6.7 km from the border
_RADIUS = "5km"
_EVERY_S = 0.002
Place = tuple[float, float]


def quartered(nodes: Nodes) -> dict[Place, int]:
    """Let the nodes follow a plan of four leaves; return which node holds which place."""
    xs = [x + step / 1000 for x, _ in PLACES for step in range(25)]
    ys = [y for _, y in PLACES for _ in range(25)]
    whole = (-1.0, -1.0, 1.0, 1.0)
    counts = CellCounts.from_positions(whole, [], xs, ys, depth=5)
    plan = Plan.build(whole, [], counts, capacity=30, version=1)
    plan = plan.with_brokers(list(range(len(plan.leaves))))
    named = asyncio.run(share_plan(NetworkSection(join=[nodes.address]), plan))
    wait_until(lambda: all(one.plan == named.version for one in nodes.members()), "use the plan")
    return {place: _holder(named, place) for place in PLACES}


def _holder(named: NamedPlan, place: Place) -> int:
    assert named.plan.brokers is not None
    broker = named.plan.brokers[named.plan.leaf_at(*place).number]
    return int(named.nodes[broker].rpartition("-")[2])


def wait_until(is_so: Any, what: str) -> None:
    until = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > until:
            message = f"the nodes do not {what}"
            raise RuntimeError(message)
        time.sleep(0.1)


def _across(place: Place) -> Place:
    return -place[0], place[1]


def _packet(topic: str, place: Place, qos: int = 0) -> bytes:
    number = b"\0\1" if qos else b""
    payload = f'{{"lon":{place[0]},"lat":{place[1]}}}'.encode()
    return framed(0x30 | qos << 1, string(topic) + number + payload)


def _move(sock: socket.socket, place: Place) -> None:
    sock.sendall(_packet("$position", place, qos=1))


def _follower(port: int, name: str, place: Place) -> socket.socket:
    """Return a client that is somewhere and wants what is near."""
    sock = link(port, 4, name)
    _move(sock, place)
    read_packet(sock)
    sock.sendall(framed(0x82, b"\0\1" + string(f"$near/{_RADIUS}/square/#") + b"\0"))
    read_packet(sock)
    return sock


@contextmanager
def _events(nodes: Nodes, holders: dict[Place, int]) -> Iterator[None]:
    """Let something happen at these places all the time."""
    socks = {place: link(nodes.ports[n], 4, f"source{n}") for place, n in holders.items()}
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.wait(_EVERY_S):
            for place, sock in socks.items():
                sock.sendall(_packet("square/news", place))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for sock in socks.values():
            sock.close()


def latencies(nodes: Nodes, count: int) -> list[float]:
    """Return milliseconds from a position update to the first event through the new holder."""
    holders = quartered(nodes)
    times = []
    gateway = next(n for n in range(len(nodes.ports)) if n not in map(holders.get, PLACES[:2]))
    place = PLACES[0]
    sock = _follower(nodes.ports[gateway], "walker", place)
    with _events(nodes, {one: holders[one] for one in PLACES[:2]}):
        for _ in range(count):
            place = _across(place)
            wanted = f'{{"lon":{place[0]},"lat":{place[1]}}}'.encode()
            begun = time.perf_counter()
            _move(sock, place)
            while True:
                first, body = read_packet(sock)
                if first >> 4 == 3 and body.endswith(wanted):
                    break
            times.append((time.perf_counter() - begun) * 1_000)
            _read_for(sock, 0.02)
    sock.close()
    return times


def _read_for(sock: socket.socket, seconds: float) -> None:
    """Take packets for a while; stop between two of them."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        if select.select([sock], [], [], left)[0]:
            read_packet(sock)


def rate(nodes: Nodes, clients: int, jumps: int) -> dict[str, float]:
    """Return the handovers a second, and what went wrong at the end (nothing may)."""
    holders = quartered(nodes)
    rng = random.Random(2)
    places = [rng.choice(PLACES) for _ in range(clients)]
    count = len(nodes.ports)
    socks = [
        _follower(nodes.ports[n % count], f"walker{n}", place) for n, place in enumerate(places)
    ]
    before = sum(one.handovers for one in nodes.members())
    cpu_before = sum(nodes.cpu_s())
    begun = time.perf_counter()
    for _ in range(jumps):
        for number, sock in enumerate(socks):
            places[number] = _across(places[number])
            _move(sock, places[number])
        for sock in socks:
            read_packet(sock)
    wrong = _check(nodes, holders, socks, places)
    took_s = time.perf_counter() - begun
    cpu_s = sum(nodes.cpu_s()) - cpu_before
    time.sleep(1.5)  # what the nodes have counted is told once a second
    counted = sum(one.handovers for one in nodes.members()) - before
    for sock in socks:
        sock.close()
    return {"a_second": counted / took_s, "handovers": counted, "cpu_s": cpu_s, "wrong": wrong}


def _check(
    nodes: Nodes, holders: dict[Place, int], socks: list[socket.socket], places: list[Place]
) -> int:
    """Publish at every place; return how many clients got something else than they must."""
    for place, node in holders.items():
        source = link(nodes.ports[node], 4, f"last{node}")
        source.sendall(_packet("square/last", place, qos=1))
        read_packet(source)
        source.close()
    wrong = 0
    for sock, place in zip(socks, places, strict=True):
        wanted = f'{{"lon":{place[0]},"lat":{place[1]}}}'.encode()
        sock.settimeout(5)
        try:
            _, body = read_packet(sock)
        except TimeoutError:
            body = b""
        wrong += not body.endswith(wanted)
    for sock in socks:
        if select.select([sock], [], [], 0)[0]:
            wrong += 1
    return wrong


def takeover_s(nodes: Nodes) -> float:
    """Kill a node that holds a place; return the seconds until events reach those near it again.

    Neither the publisher nor the subscriber is its client. What is published meanwhile comes late,
    not never: that is checked.
    """
    holders = quartered(nodes)
    place = PLACES[0]
    gateway, origin = [n for n in range(len(nodes.ports)) if n != holders[place]][:2]
    sock = _follower(nodes.ports[gateway], "near", place)
    source = link(nodes.ports[origin], 4, "source")
    packet = _packet("square/news", place, qos=1)
    source.sendall(packet)
    read_packet(source)
    read_packet(sock)
    nodes.kill(holders[place])
    begun, sent, got, first_s = time.perf_counter(), 0, 0, 0.0
    while not first_s or got < sent:
        if not first_s:
            source.sendall(packet)
            read_packet(source)
            sent += 1
        if select.select([sock], [], [], 0.02)[0]:
            read_packet(sock)
            got += 1
            first_s = first_s or time.perf_counter() - begun
        if time.perf_counter() - begun > 30:
            message = f"{sent - got} events have not come"
            raise RuntimeError(message)
    sock.close()
    source.close()
    return first_s
