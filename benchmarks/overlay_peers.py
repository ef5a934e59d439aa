"""What a live peer costs: events that a relay passes on per second of CPU, messages at rest.

The peers are the members that serve `nearcast peer`, with their codec, without sockets: bytes of
frames go in, bytes of frames come out.
"""

from __future__ import annotations

import time
from random import Random
from statistics import median

from nearcast.overlay import Extent, Settings
from nearcast.overlay.live.acknowledged import AckTiming
from nearcast.overlay.live.codec import EnvelopeDecoder, FrameReader, encode_envelope
from nearcast.overlay.live.member import NewEvent, OverlayMember
from nearcast.overlay.live.outgoing import PeerAnswers
from nearcast.overlay.messages import Envelope

EXTENT = Extent((0.0, 0.0), (100.0, 100.0))
SETTINGS = Settings(EXTENT)
PAYLOAD = bytes(64)


def settled(count: int, seed: int = 1) -> dict[str, OverlayMember]:
    """Return peers with boxes side by side in one tree, without any delay between them."""
    peers: dict[str, OverlayMember] = {}
    now = 0

    def carry() -> None:
        moved = True
        while moved:
            moved = False
            for name in list(peers):
                for to, content in peers[name].take_out():
                    moved = True
                    if isinstance(content, Envelope):
                        peers[to].receive(content, now, name)
                    elif isinstance(content, PeerAnswers):
                        peers[to].answered(name, content.acks, now)
                    else:
                        peers[to].heard_of_gaps(name, content.gaps, now)

    for number in range(count):
        name = f"10.0.0.{number}:7000/00000000"
        timing = AckTiming(most_kept=1_000_000)
        peers[name] = OverlayMember(name, SETTINGS, Random(seed + number), timing)
        peers[name].meet(list(peers)[:1])
        low = 100.0 / count * number
        peers[name].set_boxes([((low, 0.0), (low + 100.0 / count, 100.0))], now)
        carry()
    for _ in range(60):
        now += 500
        for peer in list(peers.values()):
            peer.advance(now)
        carry()
    return peers


def relay(batch: int, *, sure: bool = False, events: int = 6_400) -> float:
    """Return the events that a root with two branches passes on, per second of CPU."""
    peers = settled(3)
    root = next(
        peer
        for peer in peers.values()
        if any(seat.parent is None for seat in peer.core.seats.values())
    )
    publisher = next(peer for peer in peers.values() if peer is not root)
    random, frames = Random(2), []
    for _ in range(events // batch):
        points = [(random.uniform(0, 100), 50.0) for _ in range(batch)]
        publisher.publish([NewEvent((one, one), PAYLOAD, sure) for one in points], 60_000)
        for to, content in publisher.take_out():
            if to == root.core.peer_id and isinstance(content, Envelope):
                frames.append(encode_envelope(0, content))
    decoder = EnvelopeDecoder(root.core.peer_id, {0: EXTENT})
    began, sent = time.process_time(), 0
    for frame in frames:
        [(kind, body)] = FrameReader().read(frame)
        _, envelope = decoder.decode(kind, body)
        root.receive(envelope, 60_000, publisher.core.peer_id)
        for _, content in root.take_out():
            if isinstance(content, Envelope):
                sent += len(encode_envelope(0, content))
        root.take_arrivals()
    assert sent
    return events / (time.process_time() - began)


def main() -> None:
    """Print the table of docs/peers.md."""
    relay(1, events=200)  # compile, import
    for batch in (1, 8, 64):
        for sure in (False, True):
            found = [relay(batch, sure=sure) for _ in range(3)]
            print(
                f"{batch:3} events a frame, QoS {int(sure)}: "
                f"{median(found):8,.0f} events per second of CPU"
            )


if __name__ == "__main__":
    main()
