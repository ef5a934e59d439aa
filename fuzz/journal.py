"""Damage journals at random places and start a node on each: no start fails, no loss is silent.

    python fuzz/journal.py --damages 1000 --seed 1

Each damage ends in one of four ways, and anything else is a finding:
    refused   the file is no journal any more, and the error names it
    told      the log says which bytes were dropped, and the damaged file is kept
    tail      a last batch is cut short as a crash does, and the log says so
    nothing   the damage has not changed a byte of what was written

What an untouched batch tells must have come back; and the next start finds a whole journal.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

from nearcast.broker import Broker, Connection
from nearcast.model.errors import FileFormatError
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    Properties,
    Publish,
    Subscribe,
    Will,
    encode_packet,
)
from nearcast.server import JournalFile
from nearcast.server.storage.journal_format import (
    _OLD_BATCH,
    FILE_HEADER_BYTES,
    OLD_MAGIC,
    batch_header,
    file_header,
)
from nearcast.server.storage.restore import restore_node

MARK = b"\x93\0\xd1\x07\xee\x5a\x10\xc4"
NOW_MS = 1_000_000
KINDS = ("flip", "zeros", "garbage", "cut", "cut out", "insert", "leave out", "twice", "swap")


def written(seed: int) -> list[bytes]:
    """Return the batches that a few clients make a node write: a snapshot first."""
    rng = random.Random(seed)
    node = Broker(with_journal=True)
    links: list[Connection] = []
    for number in range(4):
        link = Connection()
        node.open(link, NOW_MS)
        lasting = Properties(session_expiry_interval=3_600, receive_maximum=2)
        will = Will(f"wills/{number}", b"gone", 1)
        connect = Connect(f"client {number}", properties=lasting, will=will)
        subscribe = Subscribe(1, (FilterRequest(f"t/{number}/#", 1 + number % 2),))
        node.receive(link, encode_packet(connect) + encode_packet(subscribe), NOW_MS)
        links.append(link)
    node.take_journal()
    batches = [one for one in node.snapshot() if one]
    for number in range(30):
        topic, payload = f"t/{rng.randrange(4)}/{number}", rng.randbytes(rng.randrange(1, 900))
        packet = Publish(topic, payload, 1, retain=rng.random() < 0.3, packet_id=number + 1)
        node.receive(rng.choice(links), encode_packet(packet), NOW_MS)
        batches.append(node.take_journal())
    return [one for one in batches if one]


def laid_out(batches: list[bytes], *, is_old: bool) -> tuple[bytes, list[int]]:
    """Return a file of these batches, and where each begins; at last where the file ends."""
    parts = [
        _OLD_BATCH.pack(len(one), zlib.crc32(one)) + one
        if is_old
        else batch_header(MARK, number, one) + one
        for number, one in enumerate(batches, 1)
    ]
    first = len(OLD_MAGIC) if is_old else FILE_HEADER_BYTES
    starts = list(itertools.accumulate(map(len, parts), initial=first))
    header = OLD_MAGIC if is_old else file_header(MARK, starts[4])
    return header + b"".join(parts), starts


def damaged(
    raw: bytes, starts: list[int], kind: str, rng: random.Random
) -> tuple[bytes, tuple[int, int]]:
    """Return the file with one damage, and which of its bytes that touches."""
    at = rng.randrange(len(raw))
    end = min(len(raw), at + rng.choice((1, 30, 700, 4_096)))
    one = rng.randrange(len(starts) - 2)
    a, b, c = starts[one : one + 3]
    flipped = bytes((raw[at] ^ 1 << rng.randrange(8),))
    made = {
        "flip": (raw[:at] + flipped + raw[at + 1 :], (at, at + 1)),
        "zeros": (raw[:at] + bytes(end - at) + raw[end:], (at, end)),
        "garbage": (raw[:at] + rng.randbytes(end - at) + raw[end:], (at, end)),
        "cut": (raw[:at], (at, len(raw))),
        "cut out": (raw[:at] + raw[end:], (at, end)),
        "insert": (raw[:at] + rng.randbytes(end - at) + raw[at:], (at, at)),
        "leave out": (raw[:a] + raw[b:], (a, b)),
        "twice": (raw[:b] + raw[a:], (b, b)),
        "swap": (raw[:a] + raw[b:c] + raw[a:b] + raw[c:], (a, c)),
    }
    bad, touched = made[kind]
    return bad, (0, 0) if bad == raw else touched


def untouched(starts: list[int], touched: tuple[int, int]) -> list[int]:
    """Return the places of the batches that a damage left as they were."""
    first, last = touched
    return [
        place
        for place, (begin, end) in enumerate(itertools.pairwise(starts))
        if end <= first or begin >= last
    ]


class Said(logging.Handler):
    """Keeps what the server logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Start:
    """One start of a node on a directory: what it read, what it said."""

    def __init__(self, directory: Path) -> None:
        said, log = Said(), logging.getLogger("nearcast.server")
        log.addHandler(said)
        log.propagate = False
        journal = JournalFile(directory)
        self.node = Broker(with_journal=True)
        self.refusal = ""
        self.batches: list[bytes] = []
        try:
            restore_node(self.node, journal, NOW_MS)
        except FileFormatError as problem:
            self.refusal = str(problem)
        finally:
            journal.close()
            log.removeHandler(said)
            log.propagate = True
        self.damages = journal.damages
        self.said = said.lines
        self.kept = sorted(one.name for one in directory.glob("*.damaged*"))

    def held(self) -> dict[str, tuple[int, int, int]]:
        """Return what each client has there."""
        return {
            one.client_id: (len(one.subscriptions), len(one.queue), len(one.in_flight))
            for one in self.node.state.sessions.values()
        }


def expected(batches: list[bytes]) -> tuple[dict[str, tuple[int, int, int]], int]:
    """Return what these batches alone make of a node."""
    node = Broker(with_journal=True)
    node.restore(batches, NOW_MS)
    held = {
        one.client_id: (len(one.subscriptions), len(one.queue), len(one.in_flight))
        for one in node.state.sessions.values()
    }
    return held, node.state.retained.count


def try_one(seed: int) -> str:
    """Make one damage and start on it; return how it ended. Raises where a promise is broken."""
    rng = random.Random(seed)
    is_old = not seed % 5
    batches = written(seed % 7)
    raw, starts = laid_out(batches, is_old=is_old)
    kind = rng.choice(KINDS[:5] if is_old else KINDS)
    bad, touched = damaged(raw, starts, kind, rng)
    story = f"seed {seed}: {kind} of bytes {touched}, format {1 if is_old else 2}"
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        path = directory / "journal-00000001.log"
        path.write_bytes(bad)
        start = Start(directory)
        outcome = judged(start, path, batches, starts, touched, story, is_same=bad == raw)
        if outcome != "refused":
            again = Start(directory)
            assert not again.damages, (story, again.said)
            assert again.held() == start.held(), story
        return outcome


def judged(
    start: Start,
    path: Path,
    batches: list[bytes],
    starts: list[int],
    touched: tuple[int, int],
    story: str,
    *,
    is_same: bool,
) -> str:
    """Return how a start ended; raises where something was lost in silence, or needlessly."""
    if start.refusal:
        assert str(path) in start.refusal, story
        assert touched[0] < starts[1], (story, start.refusal)  # the header, or what follows it
        return "refused"
    whole = untouched(starts, touched)
    least = expected([batches[place] for place in whole])
    found = (start.held(), start.node.state.retained.count)
    if is_same:
        assert not start.damages, story
        assert found == least, story
        return "nothing"
    if touched[0] in starts and touched[1] == starts[-1] and not start.damages:
        assert found == least, story  # cut between two batches: no trace is left, none is needed
        return "tail"
    assert start.damages, (story, "lost in silence")
    assert any("byte" in line for line in start.said), story
    if "swap" in story or found != least:
        least = expected(used(start, batches, whole))
    assert found == least, (story, found, least)
    if all(one.is_tail for one in start.damages):
        assert whole == list(range(len(whole))), (story, "called a tail, and something is behind")
        return "tail"
    assert start.kept, (story, "the damaged file is not kept")
    return "told"


def used(start: Start, batches: list[bytes], whole: list[int]) -> list[bytes]:
    """Return the batches that a start may have used beside those untouched: saved, or in order."""
    saved = [one.reason for one in start.damages if "are whole, and used" in one.reason]
    if saved:
        missing = [place for place in range(len(batches)) if place not in whole]
        return [batches[place] for place in sorted((*whole, *missing[:1]))]
    again = [one.reason for one in start.damages if "again, or out of its order" in one.reason]
    numbers = {int(one.split()[1]) - 1 for one in again}
    return [one for place, one in enumerate(batches) if place not in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damages", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    outcomes = Counter(
        try_one(seed) for seed in range(options.seed, options.seed + options.damages)
    )
    print(f"{options.damages} damages in {time.monotonic() - began_s:.0f} s: {dict(outcomes)}")


if __name__ == "__main__":
    main()
