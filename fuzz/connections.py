"""Open and close many short connections, and measure whether the broker's memory stays flat.

    python fuzz/connections.py --connections 100000

The clients are of all kinds that leave something behind: clean sessions, durable sessions that the
next clean start ends, wills with and without a delay, long keep-alives, subscriptions of their own.
Some say goodbye, most are just gone. Names come back after a while, as devices do. The memory is
that of the broker's process after a fifth of the run, and at its end.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import time
from pathlib import Path

from live import living
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    Subscribe,
    Will,
    encode_packet,
)

NAMES = 500
MOST_GROWN_MB = 8.0
GOODBYE, CONNACK = b"\xe0\0", 0x20


def memory_mb(pid: int) -> float:
    """Return the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def connect_packet(name: str, rng: random.Random) -> Connect:
    """Return the CONNECT of a client of some kind."""
    is_durable = rng.random() < 0.4
    will = Will(f"gone/{rng.randrange(NAMES)}", b"gone", rng.randrange(3))
    if rng.random() < 0.5:
        delay = Properties(will_delay_interval=rng.choice((1, 3_600)))
        will = Will(will.topic, will.payload, will.qos, properties=delay)
    return Connect(
        name,
        ProtocolVersion.V5,
        clean_start=not is_durable or rng.random() < 0.5,
        keep_alive_s=rng.choice((0, 60, 65_535)),
        will=will if rng.random() < 0.5 else None,
        properties=Properties(session_expiry_interval=7 * 86_400 if is_durable else 0),
    )


def visit(port: int, rng: random.Random) -> None:
    """Connect, say a little, and go."""
    name = f"device-{rng.randrange(NAMES)}"
    packets = (
        connect_packet(name, rng),
        Subscribe(1, (FilterRequest(f"mine/{name}/+", 1), FilterRequest("all/#", 0))),
        Publish(f"mine/{name}/state", b"here", 1, packet_id=2, retain=rng.random() < 0.2),
    )
    data = b"".join(encode_packet(one, ProtocolVersion.V5) for one in packets)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        link.sendall(data)
        first = link.recv(1 << 16)
        assert first[0] == CONNACK, f"expected a CONNACK, got {first!r}"
        if rng.random() < 0.3:
            link.sendall(GOODBYE)


def run(connections: int, seed: int, most_grown_mb: float = MOST_GROWN_MB) -> str:
    """Return what was measured; raises if the memory has grown by more than `most_grown_mb`."""
    rng = random.Random(seed)
    began_s = time.monotonic()
    warm_mb = 0.0
    with living(space=[]) as live:  # no space: kernels that are loaded later would count as growth
        for number in range(connections):
            if not number % 100:
                live.check()  # so the bystander reads what the wills say
            if number == connections // 5:
                warm_mb = memory_mb(live.process.pid)
            visit(live.port, rng)
        live.check()
        end_mb = memory_mb(live.process.pid)
    told = (
        f"{connections} connections in {time.monotonic() - began_s:.0f} s: "
        f"{warm_mb:.1f} MB after a fifth of them, {end_mb:.1f} MB at the end"
    )
    assert end_mb - warm_mb <= most_grown_mb, f"{told}; expected {most_grown_mb} MB more at most"
    return told


def main() -> None:
    """Run as many as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(run(arguments.connections, arguments.seed))


if __name__ == "__main__":
    main()
