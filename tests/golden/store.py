"""What nodes leave in NATS and say to each other directly: subjects, records, pieces, the feed."""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from nats.js.errors import BucketNotFoundError, KeyNotFoundError, NotFoundError
from tests.golden.golden import Codec, Maker, as_hex, hex_lines
from tests.golden.settings import EXAMPLE_SPACES

from nearcast.broker import Broker
from nearcast.cluster.cluster import Cluster
from nearcast.config import NetworkSection, read
from nearcast.mqtt import Properties, Publish, encode_packet
from nearcast.nats.feed_messages import Publication, decode_publication, encode_publication
from nearcast.server.broker_settings import describe_spaces
from nearcast.server.clock import Clock
from nearcast.server.cluster import direct_links as links
from nearcast.server.cluster import nats_pieces
from nearcast.server.cluster.nats_frames import FrameCarrier
from nearcast.server.cluster.nats_members import (
    DepartedMember,
    LinkState,
    MemberRecord,
    Members,
    open_bucket,
)
from nearcast.server.cluster.nats_pieces import cut
from nearcast.server.cluster.nats_settings import PLAN, POLICIES, SharedSettings
from nearcast.server.cluster.node_proofs import request_subject
from nearcast.server.feed.numbers import FeedNumbers
from nearcast.server.feed.sender import FeedSender
from nearcast.server.loop_batches import LoopBatches

SECTION = NetworkSection(join=["nats://127.0.0.1:4222"], name="town", feed=["city/#"])
MEMBER = MemberRecord(
    "berlin.3", "0011223344556677", addresses=["mqtt://10.0.0.7:1883"], speaks=(1, 3),
    version="0.1.0", started_ms=1_700_000_000_000, spaces="00ff", clients=5,
    frames_sent=6, frames_received=7, bytes_sent=8, refused=9,
    links={"n2": LinkState(True, 1.5, 0.25, 2, "a problem", True), "n3": LinkState()},
    messages_sent=10, handovers=11, plan=12, unwanted=13, direct="10.0.0.7:7400",
)  # fmt: skip
LEFT = DepartedMember("berlin.3", 1_700_000_000_000)
FEED = Codec(
    "publications in the feed of a network",
    {
        "all": Publication(1, 1_700_000_000_000, "0123", 7, "city/1", b"\0x", (("k", "v"),)),
        "without pairs": Publication(1, 1, "e", 0, "t", b""),
    },
    encode_publication,
    decode_publication,
)
TOKEN = "ab" * 16
_MADE_WITH = (
    *("bucket", "history", "ttl", "replicas", "name", "subjects", "retention", "storage"),
    *("max_bytes", "max_age", "num_replicas", "duplicate_window"),
)  # the rest are what the client's library takes where nothing is said


class Bucket:
    """A key-value bucket in memory."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def get(self, key: str) -> Any:
        if key not in self.stored:
            raise KeyNotFoundError
        return mock.Mock(value=self.stored[key], revision=1)

    async def put(self, key: str, value: bytes, **_: Any) -> int:
        self.stored[key] = value
        return 1

    create = update = put


class Nats:
    """A connection to NATS that writes down what is asked of it."""

    max_payload, is_closed, timeout_s, complaint = 64, False, 1.0, ""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arrived: Callable[[str, bytes], None] = lambda _subject, _data: None

    async def subscribe_directly(self, subject: str, take: Callable[[str, bytes], None]) -> Any:
        self.lines.append(f"subscribe {subject}")
        self.arrived = take
        return mock.AsyncMock()

    def publish_directly(self, subject: str, data: bytes) -> bool:
        self.lines.append(f"publish {subject} {as_hex(data)}")
        return True

    async def publish(self, subject: str, data: bytes, *rest: Any) -> None:
        self.lines.append(f"publish {subject} {as_hex(data)} {list(rest)}".removesuffix(" []"))

    async def subscribe(self, subject: str, **_: Any) -> Any:
        self.lines.append(f"subscribe {subject}")
        return mock.AsyncMock()

    def new_inbox(self) -> str:
        return "_INBOX.1"

    def jetstream(self, **_: Any) -> Any:
        stream = mock.Mock()
        stream.key_value = mock.AsyncMock(side_effect=BucketNotFoundError)
        missing = NotFoundError(code=404, err_code=10_059)
        stream.stream_info = mock.AsyncMock(side_effect=missing)
        stream.create_key_value = stream.add_stream = self._made
        return stream

    async def _made(self, config: Any) -> Bucket:
        given = asdict(config)
        told = {key: str(given[key]) for key in _MADE_WITH if given.get(key) is not None}
        self.lines.append(f"make {json.dumps(told)}")
        return Bucket()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)


async def frames_over_nats(nats: Nats) -> list[str]:
    """Carry a short frame and one that NATS is too small for; return what came of them."""
    heard: list[str] = []
    carrier = FrameCarrier(
        SECTION.name,
        "berlin.3",
        received=lambda name, data: heard.append(f"received {name} {as_hex(data)}"),
        has_room=lambda: None,
    )
    with mock.patch.object(nats_pieces, "_LEAST_BYTES", 64):  # so that a golden frame is short
        running = asyncio.create_task(carrier.run(nats))  # type: ignore[arg-type]
        await _settled()
    carrier.send([("n.2", b"short"), ("n.2", bytes(range(100)))])
    await _settled()
    for line in nats.lines[1:]:
        _, subject, *data = line.split()
        sent = bytes.fromhex("".join(data))
        nats.arrived(subject.replace("n=2E2.berlin=2E3", "berlin=2E3.n=2E2"), sent)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return nats.lines + heard


async def kept_in_nats(nats: Nats) -> list[str]:
    """Make the buckets, and write an entry, a mark and shared values into them."""
    made: list[Any] = [await open_bucket(nats, SECTION, expires=one) for one in (True, False)]  # type: ignore[arg-type]
    nodes, kept = made
    members = Members(nats, nodes, kept)  # type: ignore[arg-type]
    await members.claim(MEMBER)
    await members.mark_left(LEFT.name, LEFT.at_ms)
    shared = SharedSettings(nats, kept)  # type: ignore[arg-type]
    await shared.put(PLAN, b"a plan", at_ms=5)
    await shared.put(POLICIES, b"p" * 600_000, at_ms=6)
    for bucket in (nodes, kept):
        for key, value in bucket.stored.items():
            text = value.decode() if value[:1] == b"{" else as_hex(value)
            nats.lines.append(f"{key} = {text}")
    nats.lines.append(f"requests {request_subject(SECTION.name, 'berlin.3')}")
    return nats.lines


async def feed_over_nats(nats: Nats) -> list[str]:
    """Feed two publications to JetStream."""
    clock = mock.Mock(now_ms=lambda: 1_700_000_000_000)
    turns = mock.Mock(clock=clock, now_ms=clock.now_ms())
    with mock.patch.object(secrets, "token_hex", lambda size: TOKEN[: 2 * size]):
        sender = FeedSender(SECTION, "berlin.3", Broker(), turns, None)
    running = asyncio.create_task(sender.run(nats))  # type: ignore[arg-type]
    await _settled()
    pairs = Properties(user_properties=(("k", "v"),))
    for one in (Publish("city/1", b"x"), Publish("city/2", b"y", 1, packet_id=3, properties=pairs)):
        sender.write([encode_packet(one)])
    await _until(lambda: len(nats.lines) == 4)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return nats.lines


NUMBERED = [
    Publish("city/1", b"x", 1, packet_id=3, properties=Properties(user_properties=(("k", "v"),))),
    Publish("city/2", b"", 2, packet_id=65_535),
]


def feed_numbers() -> str:
    """Return the file in which a node keeps the numbers of what it has fed."""
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(secrets, "token_hex", lambda size: TOKEN[: 2 * size]),
    ):
        numbers = FeedNumbers(Path(name) / "feed-numbers")
        assert [numbers.assign(one) for one in NUMBERED] == [1, 2]
        numbers.close()
        data = (Path(name) / "feed-numbers").read_bytes()
    return hex_lines("feed-numbers: epoch; then packet identifier, number, digest", {"file": data})


# --- directly -----------------------------------------------------------------------------------

KEY = "0123456789abcdef" * 2
INTRODUCTION, WELCOME = f"NEARCAST 1 town n1 n2 {KEY}\n".encode(), b"+"
FRAME = b"\x05\0\0\0" + b"frame"


@asynccontextmanager
async def doors(
    name: str, received: Callable[[str, bytes], None]
) -> AsyncIterator[links.DirectLinks]:
    """Return the door of a node that knows one other node, its key fixed."""

    async def ask(_name: str) -> str:
        return KEY

    node = Broker()
    other = {"n1": "n2", "n2": "n1"}[name]
    mesh = Cluster(name, node, random=Random(1))
    turns = LoopBatches(node, Clock())
    address = "127.0.0.1:0" if name == "n2" else None
    one = links.DirectLinks(SECTION.name, address, mesh, turns, ask, received)
    one.key = KEY
    mesh.meet(other, 0)
    with mock.patch.object(links, "DIAL_S", 60):  # this machine may stand still for a second
        await one.open()
        try:
            yield one
        finally:
            await one.close()


async def direct() -> list[str]:
    """Let a node connect to another one directly; return what it says, one line each."""
    said: dict[str, bytes] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said["line"] = await reader.readline()
        writer.write(WELCOME)
        said["frame"] = await reader.readexactly(len(FRAME))
        writer.close()

    async with doors("n1", lambda _name, _frame: None) as one:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        one.know("n2", f"127.0.0.1:{port}")
        one.send([("n2", b"this one is lost, and lets the node connect")])
        await _until(lambda: one.is_direct("n2"))
        one.send([("n2", b"frame")])
        await _until(lambda: "frame" in said)
        server.close()
    return [f"{name}: {as_hex(data)}" for name, data in said.items()]


def _lines(work: Callable[[], Awaitable[list[str]]]) -> Maker:
    async def run() -> list[str]:
        return await work()

    return lambda: "\n".join(asyncio.run(run())) + "\n"


def spaces_digest() -> str:
    """Return by what nodes tell that they have the same spaces."""
    configuration = read(EXAMPLE_SPACES, {}, file="golden").configuration
    assert configuration is not None
    return f"{EXAMPLE_SPACES}# digest: {describe_spaces(configuration)}\n"


FILES: dict[str, Maker] = {
    "store/feed.hex": FEED.text,
    "store/frames.txt": _lines(lambda: frames_over_nats(Nats())),
    "store/pieces.hex": lambda: hex_lines(
        "a frame in pieces: number, place, count; content",
        {str(n): one for n, one in enumerate(cut(bytes(range(20)), 16, 7))},
    ),
    "store/buckets.txt": _lines(lambda: kept_in_nats(Nats())),
    "store/feed.txt": _lines(lambda: feed_over_nats(Nats())),
    "store/feed-numbers.hex": feed_numbers,
    "store/direct.txt": _lines(direct),
    "store/spaces.toml": spaces_digest,
}
