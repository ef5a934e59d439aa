"""One task of an audit: what a segment tells by itself, and what must meet other nodes' rows.

Tasks share what they know of a node as long as their process lives: who wanted what, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nearcast.pipeline.audit_causal import causal_rows, late_rows
from nearcast.pipeline.audit_deliveries import (
    Finding,
    SegmentEvents,
    codes_of,
    judge_deliveries,
    longs,
    read_events,
)
from nearcast.pipeline.audit_hops import Allowance, hops_of, untold
from nearcast.pipeline.audit_logs import NodeFacts, Segment, read_part, whole
from nearcast.pipeline.audit_places import places_of
from nearcast.pipeline.audit_selections import ConditionJudge
from nearcast.pipeline.audit_wishes import PEER, Chronicle, Longs

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
"""The columns of all that tasks return; `what` is fault, hop, place, or causal."""

_BUCKETS = 16
_known: dict[tuple[str, str], Chronicle] = {}


@dataclass(frozen=True, slots=True)
class Case:
    """What all tasks of one audit know."""

    segments: tuple[Segment, ...]
    nodes: Mapping[str, NodeFacts]
    allowance: Allowance
    spaces: tuple[SpaceSection, ...] | None = None
    name: str = field(default="")

    def chronicle(self, node: str) -> Chronicle:
        """Return who wanted what at a node; read once a process."""
        key = (self.name, node)
        if key not in _known:
            if any(name != self.name for name, _ in _known):
                _known.clear()  # of an audit that is over
            mine = [one for one in self.segments if one.node == node]
            _known[key] = Chronicle(mine, self.nodes[node])
        return _known[key]

    @property
    def has_links(self) -> bool:
        """Whether messages may have gone between nodes."""
        return len(self.nodes) > 1


def audit_segment(case: Case, segment: Segment) -> pd.DataFrame:
    """Return everything that a segment tells; columns as FOUND."""
    with whole(segment) as files:
        judge = None if case.spaces is None else ConditionJudge(case.spaces)
        chronicle = case.chronicle(segment.node)
        events = read_events(files, with_payload=case.has_links or judge is not None)
        found = judge_deliveries(files, events, chronicle, judge)
        frames = [_late_in_queue(files), *_causal(case, files)]
        if case.has_links:
            others = {n: case.chronicle(n) for n in case.nodes if n != segment.node}
            found += untold(events, chronicle, others, _handed(files), case.allowance)
            frames.append(_in_buckets(hops_of(files, events), "topic").assign(what="hop"))
            if judge is not None:
                rows = places_of(files, events, chronicle, others, judge, case.allowance)
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
    """Give a frame all columns and their types: numbers beside missing ones would be rounded."""
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


def _fault_rows(node: str, events: SegmentEvents, one: Finding) -> pd.DataFrame:
    rows: dict[str, Any] = {
        "what": "fault",
        "kind": one.kind,
        "node": node,
        "receiver": one.receivers,
        "why": one.why,
    }
    if one.numbers is not None:
        return pd.DataFrame(rows | {"sequence": one.numbers})
    rows["sequence"], rows["ms"] = events.sequence[one.events], events.ms[one.events]
    rows["topic"] = np.array(events.topics, dtype=object)[events.topic[one.events]]
    rows["publisher"] = np.array(events.publishers, dtype=object)[events.publisher[one.events]]
    return pd.DataFrame(rows)


def _late_in_queue(files: Segment) -> pd.DataFrame:
    """Return what left a queue after its lifetime; one node, one clock."""
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
    reach_us = max(one.reach_us for one in case.nodes.values()) + skew_ms * 1000
    rows = causal_rows(files, facts, reach_us)
    late = pd.DataFrame(late_rows(rows, skew_ms))
    kept = rows.drop(columns=["t", "lifetime_us"]).assign(what="causal")
    return [kept, late.assign(what="fault") if len(late) else late]


def _in_buckets(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Share rows out among tasks to come."""
    if len(rows):
        keys = rows[by].to_numpy()
        rows["bucket"] = (pd.util.hash_array(keys) % _BUCKETS).astype(np.int64)
    return rows


def _handed(files: Segment) -> dict[str, Longs]:
    """Return which events other nodes were handed, or were not for a reason that was noted."""
    found: dict[str, list[Longs]] = {}
    for table in ("deliveries", "drops"):
        rows = read_part(files, table, ("sequence", "receiver"))
        codes, names = codes_of(rows["receiver"])
        numbers = longs(rows["sequence"])
        for code, name in enumerate(names):
            if name.startswith(PEER):
                found.setdefault(name.removeprefix(PEER), []).append(numbers[codes == code])
    return {name: np.concatenate(parts) for name, parts in found.items()}
