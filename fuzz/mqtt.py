"""Throw damaged packets at the codec and at a broker node; only the protocol error may come out.

    python fuzz/mqtt.py --seconds 60 --seed 1
    python fuzz/mqtt.py --seconds 60 --live    # at a broker process too, over sockets
    python fuzz/mqtt.py --atheris              # coverage-guided, where atheris is installed

The codec: whole and byte by byte must agree. The node: a damaged connection must not raise, and
two healthy clients must go on talking. The broker process: the same, and it must not end.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from live import Live, living
from nearcast.broker import Broker, Connection
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    MqttProtocolError,
    Packet,
    PacketReader,
    PacketType,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
    Unsubscribe,
    Will,
    encode_packet,
)

FRESH_NODE_ROUNDS = 20_000  # what damaged packets make a node retain adds up
VERSIONS = (ProtocolVersion.V311, ProtocolVersion.V5)


def seeds(version: ProtocolVersion) -> list[bytes]:
    rich = Properties() if version < 5 else Properties(user_properties=(("a", "b"),))
    packets: list[Packet | bytes] = [
        Connect("fuzz", version, keep_alive_s=9, will=Will("w", b"gone", 1, True), properties=rich),
        Publish("a/b", b"x" * 20, properties=rich),
        Publish("a/b", b"x", 1, True, packet_id=7),
        Publish("a/b", b"x", 2, packet_id=8),
        Publish("$SYS/broker/uptime", b"0", 0, True),
        Publish("/" * 300, b""),
        Subscribe(3, (FilterRequest("a/+", 2), FilterRequest("#", 1)), rich),
        Subscribe(5, (FilterRequest("$share/g/a/#", 1), FilterRequest("$SYS/#", 0))),
        Unsubscribe(4, ("a/+",)),
        b"\xc0\x00",
        b"\xe0\x00",
        *(PublishAnswer(PacketType(kind), 8) for kind in (4, 5, 6, 7)),
    ]
    return [
        packet if isinstance(packet, bytes) else encode_packet(packet, version)
        for packet in packets
    ]


def mutate(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(raw) + 1)
        what = rng.randrange(4)
        if what == 0 and at < len(raw):
            raw[at] = rng.randrange(256)
        elif what == 1 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            raw[at:at] = rng.randbytes(rng.randint(1, 4))
        else:
            del raw[at : at + rng.randint(1, 4)]
    return bytes(raw)


def verdict(data: bytes, version: ProtocolVersion, portion: int) -> object:
    reader = PacketReader(version)
    try:
        for start in range(0, len(data), portion):
            reader.feed(data[start : start + portion])
    except MqttProtocolError as error:
        return error.reason
    return None


def check_codec(data: bytes) -> None:
    for version in VERSIONS:
        at_once = verdict(data, version, len(data) + 1)
        if at_once != verdict(data, version, 1):
            message = f"whole and byte by byte differ on {data.hex()}"
            raise AssertionError(message)


class Neighbours:
    """A node with two healthy clients; offenders come and go."""

    def __init__(self) -> None:
        self.node = Broker(with_journal=True)
        self.now_ms = 1
        self.listener, self.speaker = self.connected("listener"), self.connected("speaker")
        request = Subscribe(1, (FilterRequest("healthy", 1),))
        self.node.receive(self.listener, encode_packet(request), self.now_ms)
        self.flush()
        self.count = 0

    def connected(self, name: str) -> Connection:
        link = Connection()
        self.node.open(link, self.now_ms)
        self.node.receive(link, encode_packet(Connect(name)), self.now_ms)
        return link

    def flush(self) -> dict[Connection, bytes]:
        self.node.take_journal()
        sent: dict[Connection, bytes] = {}
        for link in self.node.take_dirty():
            sent[link] = b"".join(link.outbox)
            link.outbox, link.outbox_bytes, link.is_dirty = [], 0, False
            if link.is_closing:
                self.node.lost(link, self.now_ms)
        return sent

    def offend(self, data: bytes, cut: int) -> None:
        """Let a newcomer say something damaged, in two portions, and vanish."""
        self.now_ms += 1
        link = Connection()
        self.node.open(link, self.now_ms)
        for portion in (data[:cut], data[cut:]):
            self.node.receive(link, portion, self.now_ms)
            self.flush()
        self.node.lost(link, self.now_ms)
        self.flush()

    def check(self) -> None:
        """Assert that the healthy ones still understand each other."""
        self.count += 1
        payload = b"%d" % self.count
        self.node.receive(
            self.speaker, encode_packet(Publish("healthy", payload, 1, packet_id=1)), self.now_ms
        )
        sent = self.flush()
        messages = [
            one
            for one in PacketReader().feed(sent.get(self.listener, b""))
            if isinstance(one, Publish) and one.topic == "healthy"
        ]
        if [one.payload for one in messages] != [payload]:
            message = f"a healthy client got {messages} and not {payload!r}"
            raise AssertionError(message)
        answer = PublishAnswer(PacketType.PUBACK, messages[0].packet_id)
        self.node.receive(self.listener, encode_packet(answer), self.now_ms)
        self.flush()


def run(seconds: float, seed: int, live: Live | None = None) -> int:
    rng = random.Random(seed)
    corpora = [seeds(version) for version in VERSIONS]
    neighbours = Neighbours()
    rounds, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        if rounds % FRESH_NODE_ROUNDS == 0:
            neighbours = Neighbours()
        corpus = rng.choice(corpora)
        data = b"".join(mutate(rng, rng.choice(corpus)) for _ in range(rng.randint(1, 4)))
        greeting = corpus[0] if rng.random() < 0.8 else b""
        cut = rng.randrange(len(greeting + data) + 1)
        try:
            check_codec(data)
            neighbours.offend(greeting + data, cut)
            if rounds % 50 == 0:
                neighbours.check()
            if live is not None and rounds % 10 == 0:
                live.offend(greeting + data, cut)
            if live is not None and rounds % 100 == 0:
                live.check()
        except BaseException:
            print(f"round {rounds}: {data.hex()} after {greeting.hex()}", file=sys.stderr)
            raise
        rounds += 1
    return rounds


def guided() -> None:
    import atheris

    atheris.instrument_all()
    atheris.Setup(sys.argv[:1], check_codec)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", action="store_true")
    parser.add_argument("--live", action="store_true", help="at a broker process too")
    arguments = parser.parse_args()
    if arguments.atheris:
        guided()
    if not arguments.live:
        print(f"{run(arguments.seconds, arguments.seed)} rounds, nothing but the protocol error")
        return
    with living() as live:
        rounds = run(arguments.seconds, arguments.seed, live)
        print(
            f"{rounds} rounds, nothing but the protocol error; {live.count} exchanges of healthy"
            f" clients with the broker process, the slowest took {live.slowest_s * 1000:.0f} ms"
        )


if __name__ == "__main__":
    main()
