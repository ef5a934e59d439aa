"""Throw damaged frames at what reads the messages between peers, and at a peer in a tree.

    python fuzz/overlay.py --seconds 60 --seed 1

Only PeerProtocolError may come out of the codec, and a message that it accepts may not make the
peer raise: whatever the message claims, the peer answers it or ignores it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator

from nearcast.model.errors import NearcastError, PeerProtocolError
from nearcast.overlay import messages as m
from nearcast.overlay.bounds import Extent
from nearcast.overlay.live.acknowledged import EventAck, decode_acks, encode_acks, make_id
from nearcast.overlay.live.codec import HEAD, EnvelopeDecoder, FrameReader, encode_envelope
from nearcast.overlay.live.gap_news import GapReport, decode_gaps, encode_gaps
from nearcast.overlay.live.introduction import Hello, SpaceDigest, decode_hello, encode_hello
from nearcast.overlay.live.member import NewEvent, OverlayMember
from nearcast.overlay.live.outgoing import PeerAnswers
from nearcast.overlay.settings import Settings

EXTENT = Extent((0.0, 0.0), (100.0, 100.0))
ME = "me:1/0"
FRESH_ROUNDS = 2_000
SPOTS = (0, 1, 2, 7, 0x7F, 0x80, 0xC0, 0xC1, 0xCB, 0xDC, 0xFF)


def frames() -> list[bytes]:  # noqa: C901 - a story, told in order
    """Return frames of a tree that grows, publishes and loses a peer."""
    peers: dict[str, OverlayMember] = {}
    found: list[bytes] = []
    now = 0

    def carry() -> None:
        for _ in range(50):
            for name in list(peers):
                for to, content in peers[name].take_out():
                    if isinstance(content, m.Envelope):
                        found.append(encode_envelope(0, content))
                        if to in peers:
                            peers[to].receive(content, now, name)
                    elif to in peers and isinstance(content, PeerAnswers):
                        peers[to].answered(name, content.acks, now)
                    elif to in peers:
                        peers[to].heard_of_gaps(name, content.gaps, now)

    for number in range(12):
        name = f"peer{number}:1/0"
        peers[name] = OverlayMember(name, Settings(EXTENT), random.Random(number))
        peers[name].meet(list(peers)[:1])
        peers[name].set_boxes([((8.0 * number, 0.0), (8.0 * number + 20, 50.0))], now)
        carry()
    for step in range(40):
        now += 500
        if step == 10:
            del peers["peer3:1/0"]
        for peer in list(peers.values()):
            peer.advance(now)
            if not step % 9:
                peer.ask_outside(now)
            if not step % 7:
                peer.publish([NewEvent(((9.0, 9.0), (9.0, 9.0)), b"payload", bool(step % 2))], now)
        carry()
    by_kind: dict[int, list[bytes]] = {}
    for frame in found:
        by_kind.setdefault(frame[4], []).append(frame)
    return [frame for some in by_kind.values() for frame in some[:20]]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a frame with some bytes changed, cut or repeated; its size stays right."""
    body = bytearray(data[HEAD.size - 1 :])
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[at] = chance.choice(SPOTS)
            case 1:
                body[at] = chance.randrange(256)
            case 2:
                del body[at : at + chance.randint(1, 4)]
            case _:
                body[at:at] = body[at : at + chance.randint(1, 16)]
        if not body:
            body = bytearray(b"\x10")
    return len(body).to_bytes(4, "little") + bytes(body)


class Target:
    """A peer with a few members, and all that reads bytes of strangers."""

    def __init__(self, seeds: list[bytes]) -> None:
        self.decoder = EnvelopeDecoder(ME, {0: EXTENT})
        self.peer = OverlayMember(ME, Settings(EXTENT), random.Random(1))
        self.peer.set_boxes([((0.0, 0.0), (60.0, 60.0)), ((50.0, 0.0), (100.0, 60.0))], 0)
        self.now = 0
        for frame in seeds[:20]:
            self.check(frame)

    def check(self, data: bytes) -> None:
        """Read a frame as a connection would, and let the peer live on."""
        self.now += 50
        try:
            for kind, body in FrameReader().read(data):
                _, envelope = self.decoder.decode(kind, body)
                self.peer.receive(envelope, self.now, envelope.sender.peer)
        except PeerProtocolError:
            pass
        self.peer.advance(self.now)
        for _, content in self.peer.take_out():
            if isinstance(content, m.Envelope):
                encode_envelope(0, content)
        self.peer.take_arrivals()


def check_others(data: bytes) -> None:
    """Read bytes as introductions and as answers."""
    for read in (decode_hello, decode_acks, lambda one: decode_gaps(one, {0: EXTENT})):
        try:
            read(data)
        except PeerProtocolError:
            continue


def inputs(seeds: list[bytes], seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    while True:
        yield mutated(chance.choice(seeds), chance)


def run(seconds: float, seed: int) -> int:
    """Return how many inputs were tried."""
    seeds = frames()
    hello = Hello(name="a:1/0", nonce=bytes(16), spaces=(SpaceDigest("s", "d"),))
    others = [
        bytes(HEAD.size) + encode_hello(hello),
        bytes(HEAD.size) + encode_acks(0, [EventAck(make_id(bytes(8), 1, sure=True), 0, True)]),
        bytes(HEAD.size) + encode_gaps(0, [GapReport(bytes(8), ((0.0, 0.0), (1.0, 1.0)), 50)]),
    ]
    until, target, tried = time.monotonic() + seconds, Target(seeds), 0
    damaged = inputs(seeds, seed)
    small = inputs(others, seed)
    while time.monotonic() < until:
        data = next(damaged)
        try:
            target.check(data)
            check_others(next(small)[4:])
        except NearcastError as problem:
            raise AssertionError(
                f"seed {seed}, input {tried}: {data.hex()}: {problem}"
            ) from problem
        except BaseException:
            print(f"seed {seed}, input {tried}: {data.hex()}", file=sys.stderr)
            raise
        tried += 1
        if not tried % FRESH_ROUNDS:
            target = Target(seeds)
    return tried


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    tried = run(given.seconds, given.seed)
    print(f"{tried:,} inputs, seed {given.seed}: nothing but PeerProtocolErrors")
