"""A moving city on several nodes: how many publications must cross, beside flooding.

The city is a grid of cells, cut into as many districts as there are nodes. Everybody is connected
to the node of the district where the day began, and wants the events of the own cell and the eight
around it. Each event is published through the node of its district. Flooding sends every
publication to every other node, as a simple bridge does.
"""

from __future__ import annotations

import random
import select
import socket
import struct
from typing import Any

from benchmarks.broker_load import framed, link, publish_packet, read_packet, string
from benchmarks.network_nodes import Nodes

SIDE = 32
_DISTRICTS = {2: (2, 1), 4: (2, 2), 8: (4, 2)}
_TOPIC = "city/00/00"
_PACKET = len(publish_packet(_TOPIC, 4, 0, 0))

Cell = tuple[int, int]


def topic_of(cell: Cell) -> str:
    return f"city/{cell[0]:02d}/{cell[1]:02d}"


def around(cell: Cell) -> set[Cell]:
    column, row = cell
    return {
        (column + x, row + y)
        for x in (-1, 0, 1)
        for y in (-1, 0, 1)
        if 0 <= column + x < SIDE and 0 <= row + y < SIDE
    }


def district(cell: Cell, nodes: int) -> int:
    columns, rows = _DISTRICTS[nodes]
    return cell[0] * columns // SIDE + columns * (cell[1] * rows // SIDE)


class Traveller:
    """Somebody who walks from one random place to the next."""

    def __init__(self, rng: random.Random, nodes: Nodes, number: int) -> None:
        self._rng = rng
        self.cell = (rng.randrange(SIDE), rng.randrange(SIDE))
        self._goal = self.cell
        home = district(self.cell, len(nodes.ports))
        self.sock = link(nodes.ports[home], 4, f"traveller{number}")
        self.wanted: set[Cell] = set()
        self.got = 0
        self.want_what_is_around()

    def move(self) -> None:
        if self.cell == self._goal:
            self._goal = (self._rng.randrange(SIDE), self._rng.randrange(SIDE))
        (column, row), (to_column, to_row) = self.cell, self._goal
        step_x = (to_column > column) - (to_column < column)
        step_y = (to_row > row) - (to_row < row)
        self.cell = (column + step_x, row + step_y)

    def want_what_is_around(self) -> None:
        wanted = around(self.cell)
        self._ask(0xA2, self.wanted - wanted, b"")
        self._ask(0x82, wanted - self.wanted, b"\0")
        self.wanted = wanted

    def _ask(self, first: int, cells: set[Cell], end: bytes) -> None:
        if cells:
            filters = b"".join(string(topic_of(cell)) + end for cell in sorted(cells))
            self.sock.sendall(framed(first, b"\0\1" + filters))
            read_packet(self.sock)


class City:
    """Travellers and publishers on the nodes."""

    def __init__(self, nodes: Nodes, travellers: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._nodes = nodes
        self.travellers = [Traveller(self._rng, nodes, number) for number in range(travellers)]
        self._publishers = [link(port, 4, f"p{number}") for number, port in enumerate(nodes.ports)]

    def step(self, events: int) -> int:
        """Let everybody move, then publish; return the deliveries, checked by brute force."""
        for one in self.travellers:
            one.move()
            one.want_what_is_around()
        places = [(self._rng.randrange(SIDE), self._rng.randrange(SIDE)) for _ in range(events)]
        expected = {one.sock: sum(p in one.wanted for p in places) for one in self.travellers}
        for place in places:
            publisher = self._publishers[district(place, len(self._publishers))]
            publisher.sendall(publish_packet(topic_of(place), 4, 0, 0))
        return self._receive(expected)

    def _receive(self, expected: dict[socket.socket, int]) -> int:
        missing = {sock: count * _PACKET for sock, count in expected.items() if count}
        while missing:
            ready, _, _ = select.select(list(missing), [], [], 10)
            if not ready:
                message = f"{sum(missing.values()) // _PACKET} deliveries are missing"
                raise RuntimeError(message)
            for sock in ready:
                missing[sock] -= len(sock.recv(missing[sock]))
                if not missing[sock]:
                    del missing[sock]
        return sum(expected.values())

    def close(self) -> None:
        for sock in [one.sock for one in self.travellers] + self._publishers:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


def crossings(nodes: Nodes, travellers: int, steps: int, events: int) -> dict[str, Any]:
    """Return how many publications crossed, what flooding would send, and the deliveries."""
    city = City(nodes, travellers, seed=len(nodes.ports))
    before = nodes.total("publish_received")
    delivered = sum(city.step(events) for _ in range(steps))
    published = steps * events
    crossed = nodes.total("publish_received") - before - published
    city.close()
    flooded = published * (len(nodes.ports) - 1)
    return {"published": published, "delivered": delivered, "crossed": crossed, "flooded": flooded}
