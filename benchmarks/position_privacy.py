"""What the time of an answer tells: was somebody near the place of the message, or not?

    python benchmarks/position_privacy.py [--probes 4000]

A stranger publishes at QoS 1, by turns where a victim is and where nobody is, to a broker in a
process of its own on this machine, which otherwise should be idle: nothing favours the stranger
more. It measures its PUBACK, or the answer to a PINGREQ that it sends at once on another connection
(`aside`): that one waits as long as the broker works, whenever the PUBACK is written. `bits` is the
mutual information of one time and the truth (equal-frequency bins, minus what shuffled times give);
`guess` is how often the best single threshold is right (0.5: never better than a coin).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nearcast.mqtt import (
    Connect,
    FilterRequest,
    Packet,
    PacketReader,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    PublishAnswer,
    Subscribe,
    encode_packet,
)

CONFIGURATION = """
[node]
data = "{data}"
[[listener]]
port = 0
[durability]
mode = "{mode}"
[position]
probes = 0
[[space]]
name = "city"
topics = "city/#"
longitude = "lon"
latitude = "lat"
positions = "{positions}"
[space.attributes]
lon = {{ low = -180, high = 180 }}
lat = {{ low = -90, high = 90 }}
"""
_SERVE = """
import json, sys
from pathlib import Path
from nearcast.config import load
from nearcast.server import serve
serve(load(Path(sys.argv[1]), {}), on_ready=lambda s: print(json.dumps(s.ports), flush=True))
"""
_PING = encode_packet(Pingreq())
NEAR, FAR = b'{"lon": 8.5000, "lat": 47.5000}', b'{"lon": -8.500, "lat": -47.500}'


@contextlib.contextmanager
def broker(positions: str, mode: str) -> Iterator[int]:
    """Run a broker; give its port."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "nearcast.toml")
        path.write_text(CONFIGURATION.format(data=directory, positions=positions, mode=mode))
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())[0][2])
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait()


class Client:
    """A client on a blocking socket."""

    def __init__(self, port: int, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = PacketReader()
        properties = Properties(session_expiry_interval=600)
        self.socket.sendall(encode_packet(Connect(name, properties=properties)))
        self.reader.feed(self.socket.recv(1 << 16))

    def publish(self, number: int, payload: bytes) -> float:
        """Publish at QoS 1; return the seconds until its acknowledgement."""
        packet = encode_packet(Publish("city/1", payload, 1, packet_id=number % 60_000 + 1))
        began_s = time.perf_counter()
        self.socket.sendall(packet)
        self.wait_for(PublishAnswer)
        return time.perf_counter() - began_s

    def wait_for(self, kind: type[Packet]) -> None:
        """Read until a packet of a kind has come."""
        while not any(isinstance(one, kind) for one in self.reader.feed(self.socket.recv(1 << 16))):
            pass

    def publish_beside(self, other: Client, number: int, payload: bytes) -> float:
        """Publish at QoS 1; return how long a PINGREQ takes that another connection sends then."""
        packet = encode_packet(Publish("city/1", payload, 1, packet_id=number % 60_000 + 1))
        began_s = time.perf_counter()
        self.socket.sendall(packet)
        other.socket.sendall(_PING)
        other.wait_for(Pingresp)
        took_s = time.perf_counter() - began_s
        self.wait_for(PublishAnswer)
        return took_s


def read_on(victim: Client) -> None:
    """Read what the victim gets, and acknowledge it."""
    with contextlib.suppress(OSError):
        while data := victim.socket.recv(1 << 16):
            for one in victim.reader.feed(data):
                if isinstance(one, Publish) and one.qos:
                    answer = b"\x40\x02" + one.packet_id.to_bytes(2, "big")
                    victim.socket.sendall(answer)


def measured(
    positions: str, mode: str, qos: int, probes: int, *, aside: bool = False
) -> tuple[list[float], list[float]]:
    """Return the seconds of the probes where somebody is, and where nobody is."""
    with broker(positions, mode) as port:
        victim = Client(port, "victim")
        victim.socket.sendall(encode_packet(Publish("$position", NEAR)))
        wish = FilterRequest("$near/500m/city/#", qos)
        victim.socket.sendall(encode_packet(Subscribe(1, (wish,))))
        threading.Thread(target=read_on, args=(victim,), daemon=True).start()
        stranger, other = Client(port, "stranger"), Client(port, "other")
        for number in range(500):  # kernels are compiled meanwhile
            stranger.publish(number, (NEAR, FAR)[number % 2])
            time.sleep(0.002)
        times: tuple[list[float], list[float]] = ([], [])
        order = [0, 1] * probes
        random.Random(1).shuffle(order)
        for number, kind in enumerate(order):
            payload = (NEAR, FAR)[kind]
            times[kind].append(
                stranger.publish_beside(other, number, payload)
                if aside
                else stranger.publish(number, payload)
            )
            time.sleep(0.0005)  # until the broker has written to the victim, too
        victim.socket.close()
        stranger.socket.close()
        other.socket.close()
        return times


def bits(near: list[float], far: list[float]) -> float:
    """Return the mutual information of a time and its kind, in bits a probe."""
    labels = [0] * len(near) + [1] * len(far)
    found = _information([*near, *far], labels)
    shuffled = []
    for seed in range(5):
        random.Random(seed).shuffle(labels)
        shuffled.append(_information([*near, *far], labels))
    return max(0.0, found - statistics.mean(shuffled))


def _information(times: list[float], labels: list[int], bins: int = 40) -> float:
    order = sorted(range(len(times)), key=times.__getitem__)
    joint: Counter[tuple[int, int]] = Counter()
    for place, index in enumerate(order):
        joint[place * bins // len(order), labels[index]] += 1
    total, rows, columns = len(order), Counter[int](), Counter[int]()
    for (row, column), count in joint.items():
        rows[row] += count
        columns[column] += count
    return sum(
        count / total * math.log2(count * total / (rows[row] * columns[column]))
        for (row, column), count in joint.items()
    )


def guess(near: list[float], far: list[float]) -> float:
    """Return how often the best threshold tells the two kinds apart."""
    marked = sorted([(one, 1) for one in near] + [(one, -1) for one in far])
    best = balance = 0
    for _, mark in marked:
        balance += mark
        best = max(best, abs(balance))
    return 0.5 + best / (2 * len(near))


def main() -> None:
    """Print a row for each kind of space, durability and QoS of the victim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=int, default=4_000)
    probes = parser.parse_args().probes
    print("positions   durability  victim  answer  near µs  far µs   bits   guess")
    kinds = (("publishers", False), ("private", False), ("private", True))
    for mode, qos in (("off", 0), ("off", 1), ("process", 1)):
        for positions, aside in kinds:
            near, far = measured(positions, mode, qos, probes, aside=aside)
            medians = (statistics.median(one) * 1e6 for one in (near, far))
            print(
                f"{positions:<11} {mode:<11} QoS {qos}   {'aside ' if aside else 'PUBACK'} "
                + " ".join(f"{one:7.1f}" for one in medians)
                + f"  {bits(near, far):.3f}  {guess(near, far):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
