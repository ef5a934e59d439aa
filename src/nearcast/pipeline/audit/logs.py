"""How far the log of each node can be trusted.

Sequence numbers say what was in effect when: changes of subscriptions, presence and positions are
numbered together with the events of their node. Numbers that no record covers are holes. A hole, or
a gap that may hide a change of subscriptions, makes everything after it *doubtful* until the node's
next start, when it logs all subscriptions again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.log_files import Segment, finished, read_part

NUMBERED = ("events", "subscriptions", "positions", "retained", "presence")
FOREVER = (1 << 63) - 1
Span = tuple[int, int]


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the whole log of one node.

    `starts`: sequence number and time (ms) of each start of the node; `doubts`: ranges of sequence
    numbers in which its subscriptions are not certain; `crashes`: spans (ms) in which the log may
    have lost its last records; `until_ms`: the last timestamp; `rows`: rows per table; `gaps`:
    missing sequence numbers by reason; `reach_us`: the longest lifetime of its causal messages.
    """

    starts: tuple[Span, ...] = ()
    doubts: tuple[Span, ...] = ()
    crashes: tuple[Span, ...] = ()
    until_ms: int = 0
    is_sampled: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)
    gaps: Mapping[str, int] = field(default_factory=dict)
    reach_us: int = 0


@dataclass(slots=True)
class _Survey:
    """The facts collected so far from the segments of one node."""

    starts: list[Span] = field(default_factory=list)
    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    last_ms: list[tuple[int, int]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    reach_us: int = 0


def survey(segments: Sequence[Segment]) -> NodeFacts:
    """Return the facts of one node from all of its segments; reads numbers, not events."""
    told = _Survey()
    for segment in segments:
        with finished(segment) as files:
            _survey_segment(files, told)
    if not told.spans:
        return NodeFacts(rows=told.rows)
    first = min(one[0] for one in told.spans)
    starts = sorted(told.starts)
    hard = [at for at, _, why in told.gaps if why != "sampled"] + _holes(told.spans)
    missing: dict[str, int] = {}
    for _, count, why in told.gaps:
        missing[why] = missing.get(why, 0) + count
    return NodeFacts(
        tuple(starts),
        _doubts(first, hard, [at for at, _ in starts]),
        _crashes(told, starts),
        max((ms for _, ms in told.last_ms), default=0),
        any(why == "sampled" for _, _, why in told.gaps),
        told.rows,
        missing,
        told.reach_us,
    )


def _survey_segment(files: Segment, told: _Survey) -> None:
    low, high, rows = FOREVER, -1, 0
    for name in LOG_TABLES:
        table = read_part(files, name, _SURVEYED.get(name, ("sequence",)))
        told.rows[name] = told.rows.get(name, 0) + table.num_rows
        if not table.num_rows or name not in (*NUMBERED, "gaps"):
            if name == "causal" and table.num_rows:
                told.reach_us = max(told.reach_us, pc.max(table["lifetime_us"]).as_py())
            continue
        if name == "gaps":
            found = [(g["sequence"], g["count"], g["reason"]) for g in table.to_pylist()]
            told.gaps += found
            rows += sum(count for _, count, _ in found)
            ends = [at + count - 1 for at, count, _ in found if count]
            low, high = min([low, *(g[0] for g in found)]), max([high, *ends])
            continue
        numbers = pc.min_max(table["sequence"]).as_py()
        low, high, rows = min(low, numbers["min"]), max(high, numbers["max"]), rows + len(table)
        if "t" in table.column_names:
            told.last_ms.append((numbers["max"], pc.max(table["t"]).cast(pa.int64()).as_py()))
        if name == "presence":
            own = table.filter(pc.and_(pc.equal(table["client"], ""), table["there"]))
            instants = own["t"].cast(pa.int64()).to_pylist()
            told.starts += zip(own["sequence"].to_pylist(), instants, strict=True)
    if high >= 0:
        told.spans.append((low, high, rows))


_SURVEYED = {
    "events": ("sequence", "t"),
    "presence": ("sequence", "t", "client", "there"),
    "subscriptions": ("sequence", "t"),
    "gaps": ("sequence", "count", "reason"),
    "causal": ("sequence", "lifetime_us"),
}


def _holes(spans: list[tuple[int, int, int]]) -> list[int]:
    """Return where sequence numbers are missing.

    Inside a segment, its first number stands for them.
    """
    holes, expected = [], None
    for first, last, rows in sorted(spans):
        if expected is not None and first > expected:
            holes.append(expected)
        if rows != last - first + 1:
            holes.append(first)
        expected = last + 1
    return holes


def _doubts(first: int, gaps: list[int], starts: list[int]) -> tuple[Span, ...]:
    """Return the ranges of sequence numbers in which the subscriptions are not certain."""
    doubts = []
    if not starts or starts[0] > first:  # the log begins after the node's start
        gaps = [first, *gaps]
    for at in gaps:
        until = min((start for start in starts if start >= at), default=FOREVER)
        if until > at:
            doubts.append((at, until))
    return tuple(sorted(doubts))


def _crashes(told: _Survey, starts: list[Span]) -> tuple[Span, ...]:
    """Return the spans (ms) from the last record before a crash to the start after it.

    Times are known per segment: a span begins at the last timestamp of the segment before the
    crash.
    """
    found = []
    for at, _, why in told.gaps:
        if why.startswith("crash"):
            before = max((ms for number, ms in told.last_ms if number < at), default=0)
            found.append((before, min((ms for n, ms in starts if n >= at), default=FOREVER)))
    return tuple(sorted(found))
