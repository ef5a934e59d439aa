"""One task of an audit: judges one segment, and emits the rows that must join those of other nodes.

Tasks in one process share the subscription timeline of a node (`subscription_timeline.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nearcast.eventlog.log_files import PEER, Segment, finished, read_part
from nearcast.pipeline.audit.causal import causal_rows, late_rows
from nearcast.pipeline.audit.conditions import ConditionJudge
from nearcast.pipeline.audit.deliveries import (
    Finding,
    SegmentEvents,
    codes_of,
    judge_deliveries,
    longs,
    read_events,
)
from nearcast.pipeline.audit.hops import Allowance, hops_of, unsent
from nearcast.pipeline.audit.logs import NodeFacts
from nearcast.pipeline.audit.places import places_of
from nearcast.pipeline.audit.subscription_timeline import Longs, SubscriptionTimeline

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

FOUND = {
    "what": "string", "kind": "string", "node": "string", "sequence": "bigint", "ms": "bigint",
    "topic": "string", "publisher": "string", "receiver": "string", "why": "string",
    "side": "string", "origin": "string", "target": "string", "content": "bigint",
    "level": "bigint", "lifetime_ms": "bigint", "bucket": "bigint", "group": "string",
    "sender": "string", "stamp_us": "bigint", "step": "string", "life": "bigint",
    "stretch": "bigint", "own": "boolean",
}  # fmt: skip
"""The columns of all rows that tasks return; `what` is fault, hop, place or causal."""

_BUCKETS = 16
_known: dict[tuple[str, str], SubscriptionTimeline] = {}


@dataclass(frozen=True, slots=True)
class Case:
    """The data that all tasks of one audit share."""

    segments: tuple[Segment, ...]
    nodes: Mapping[str, NodeFacts]
    allowance: Allowance
    spaces: tuple[SpaceSection, ...] | None = None
    name: str = field(default="")

    def timeline(self, node: str) -> SubscriptionTimeline:
        """Return the subscription timeline of a node; built once per process."""
        key = (self.name, node)
        if key not in _known:
            if any(name != self.name for name, _ in _known):
                _known.clear()  # of an earlier audit
            mine = [segment for segment in self.segments if segment.node == node]
            _known[key] = SubscriptionTimeline(mine, self.nodes[node])
        return _known[key]

    @property
    def has_links(self) -> bool:
        """Whether messages may have passed between nodes."""
        return len(self.nodes) > 1


def audit_segment(case: Case, segment: Segment) -> pd.DataFrame:
    """Return all rows of a segment: faults, and rows to join; the columns are FOUND."""
    with finished(segment) as files:
        judge = None if case.spaces is None else ConditionJudge(case.spaces)
        timeline = case.timeline(segment.node)
        events = read_events(files, with_payload=case.has_links or judge is not None)
        found = judge_deliveries(files, events, timeline, judge)
        frames = [_late_in_queue(files), *_causal(case, files)]
        if case.has_links:
            others = {n: case.timeline(n) for n in case.nodes if n != segment.node}
            found += unsent(events, timeline, others, _handed(files), case.allowance)
            frames.append(_in_buckets(hops_of(files, events), "topic").assign(what="hop"))
            if judge is not None:
                rows = places_of(files, events, timeline, others, judge, case.allowance)
                frames.append(_in_buckets(rows, "content").assign(what="place"))
        frames += [_fault_rows(segment.node, events, one) for one in found]
    return _shaped(frames)


def as_faults(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return faults as rows of FOUND."""
    return _shaped([pd.DataFrame(rows).assign(what="fault")] if rows else [])


def _shaped(frames: list[pd.DataFrame]) -> pd.DataFrame:
    some = [one for one in frames if len(one)]
    if not some:
        return pd.DataFrame({name: pd.Series(dtype="object") for name in FOUND})
    return pd.concat([_typed(one) for one in some], ignore_index=True)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with all columns of FOUND.

    Nullable types, since NaN would turn ints into floats.
    """
    frame = frame.reindex(columns=list(FOUND))
    for name, kind in FOUND.items():
        if kind == "bigint":
            frame[name] = frame[name].astype("Int64")
        elif kind == "boolean":
            frame[name] = frame[name].astype("boolean")
        else:
            column = frame[name].astype("object")
            frame[name] = column.where(column.notna(), None)
    return frame


def _fault_rows(node: str, events: SegmentEvents, finding: Finding) -> pd.DataFrame:
    rows: dict[str, Any] = {
        "what": "fault",
        "kind": finding.kind,
        "node": node,
        "receiver": finding.receivers,
        "why": finding.why,
    }
    if finding.numbers is not None:
        return pd.DataFrame(rows | {"sequence": finding.numbers})
    rows["sequence"], rows["ms"] = events.sequence[finding.events], events.ms[finding.events]
    rows["topic"] = np.array(events.topics, dtype=object)[events.topic[finding.events]]
    rows["publisher"] = np.array(events.publishers, dtype=object)[events.publisher[finding.events]]
    return pd.DataFrame(rows)


def _late_in_queue(files: Segment) -> pd.DataFrame:
    """Return messages that left a queue after their lifetime; one node, one clock."""
    sent = read_part(files, "sent", ("sequence", "t", "receiver", "deadline")).to_pandas()
    instants = {n: sent[n].astype("datetime64[ms, UTC]").astype("int64") for n in ("t", "deadline")}
    over_ms = instants["t"] - instants["deadline"]
    late = sent.assign(ms=instants["t"], over_ms=over_ms)[over_ms > 0]
    whys = [f"sent {over} ms after its lifetime" for over in late["over_ms"]]
    rows: pd.DataFrame = late[["sequence", "ms", "receiver"]]
    return rows.assign(what="fault", kind="late", node=files.node, why=whys)


def _causal(case: Case, files: Segment) -> list[pd.DataFrame]:
    facts = case.nodes[files.node]
    if not facts.rows.get("causal"):
        return []
    skew_ms = case.allowance.skew_ms
    reach_us = max(node.reach_us for node in case.nodes.values()) + skew_ms * 1000
    rows = causal_rows(files, facts, reach_us)
    late = pd.DataFrame(late_rows(rows, skew_ms))
    kept = rows.drop(columns=["t", "lifetime_us"]).assign(what="causal")
    return [kept, late.assign(what="fault") if len(late) else late]


def _in_buckets(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Add a bucket to each row, which distributes the rows over the tasks of the join."""
    if len(rows):
        keys = rows[by].to_numpy()
        rows["bucket"] = (pd.util.hash_array(keys) % _BUCKETS).astype(np.int64)
    return rows


def _handed(files: Segment) -> dict[str, Longs]:
    """Return the events that were sent to each other node, or dropped for it with a reason."""
    found: dict[str, list[Longs]] = {}
    for table in ("deliveries", "drops"):
        rows = read_part(files, table, ("sequence", "receiver"))
        codes, names = codes_of(rows["receiver"])
        numbers = longs(rows["sequence"])
        for code, name in enumerate(names):
            if name.startswith(PEER):
                found.setdefault(name.removeprefix(PEER), []).append(numbers[codes == code])
    return {name: np.concatenate(parts) for name, parts in found.items()}
