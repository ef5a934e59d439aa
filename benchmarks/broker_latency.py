"""How long a message takes through the broker, ours beside its peers by turns.

    python -m benchmarks.broker_latency [--rounds 5] [--seconds 3] [--only TEXT]

A hundred pairs; a payload has the time at which it was sent, and what counts is the time at which
the receiver has read it. The generator waits for nothing else: it needs a processor of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks import peers
from benchmarks.broker_paced import PacedClients, PacedLoad, pairs, serves
from benchmarks.broker_processes import OURS, running

PAIRS = 100
RATES = (500, 5_000)


class Latency(NamedTuple):
    """Microseconds of half of the messages, and of all but a hundredth."""

    p50: float
    p99: float


class TimedClients(PacedClients):
    """The clients of pairs; `times_us` has how long each message took. Packets under 128 bytes."""

    def __init__(self, port: int, load: PacedLoad) -> None:
        self.times_us: list[float] = []
        super().__init__(port, load)
        self.times_us.clear()

    def _packet(self, sock: socket.socket) -> bytes:
        packet = super()._packet(sock)
        return packet[:-8] + struct.pack("<d", time.perf_counter())

    def _read(self, timeout_s: float) -> None:
        super()._read(0.0 if timeout_s < 0.01 else timeout_s)  # epoll would wait a millisecond

    def _take(self, number: int, sock: socket.socket, data: bytes) -> None:
        now_s = time.perf_counter()
        at, end, out = 0, len(data), b""
        while end - at >= 2 and end - at >= 2 + data[at + 1]:
            first, stop = data[at], at + 2 + data[at + 1]
            if first >> 4 == 3:
                self.delivered += 1
                (sent_s,) = struct.unpack_from("<d", data, stop - 8)
                self.times_us.append((now_s - sent_s) * 1e6)
                if first & 6:
                    id_at = at + 4 + data[at + 3]
                    out += b"\x40\x02" + data[id_at : id_at + 2]
            at = stop
        self._rests[number] = data[at:]
        if out:
            sock.sendall(out)


def latencies(
    kinds: Sequence[str], rate: int, qos: int, rounds: int, seconds: float
) -> dict[str, list[Latency]]:
    """Return p50 and p99 of each round, the brokers by turns."""
    load = pairs(PAIRS, rate, qos)
    kinds = [kind for kind in kinds if serves(kind, load)]
    found: dict[str, list[Latency]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        sides = []
        for kind in kinds:
            broker = stack.enter_context(running(kind))
            clients = TimedClients(broker.port, load)
            stack.callback(clients.close)
            clients.run(0.5)  # a warm-up
            sides.append((kind, clients))
        for _ in range(rounds):
            for kind, clients in sides:
                clients.times_us.clear()
                clients.run(seconds)
                cuts = statistics.quantiles(clients.times_us, n=100)
                found[kind].append(Latency(cuts[49], cuts[98]))
    return found


def rows(
    kinds: Sequence[str], rounds: int, seconds: float, only: str = ""
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield what is measured, and the figures of each broker."""
    for rate in RATES:
        for qos in (0, 1):
            name = f"{PAIRS} pairs, {rate:,}/s, QoS {qos}"
            if only in name:
                found = latencies(kinds, rate, qos, rounds, seconds)
                for place, part in enumerate(Latency._fields):
                    chosen = {kind: [one[place] for one in all_] for kind, all_ in found.items()}
                    yield f"latency {part}, {name}, µs", chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    peers.add_options(parser)
    given = parser.parse_args()
    kinds = peers.chosen(given, [OURS])
    for name, figures in rows(kinds, given.rounds, given.seconds, given.only):
        told = "; ".join(
            f"{kind} {statistics.median(all_):.0f} ({min(all_):.0f} to {max(all_):.0f})"
            for kind, all_ in figures.items()
        )
        print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main()
