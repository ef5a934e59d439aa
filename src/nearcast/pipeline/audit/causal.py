"""Checks causal groups: deliveries after the lifetime, or after an effect of the message.

Happened-before is computed from the logs alone: everything that a node logged before it sent a
message is in that message's past, and so is the past of everything delivered there. A delivery is
out of order if the node has already delivered a message whose past contains it. The control
information in the messages is ignored: it is what the audit checks.

No dependency reaches further back than one lifetime, so the record is cut into intervals
("stretches") that overlap by that much, and each is judged alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nearcast.eventlog.log_files import Segment, read_part
from nearcast.pipeline.audit.logs import NodeFacts, records_of

MessageId = tuple[str, int]  # sender and stamp
STRETCH_US = 60_000_000


class CausalEvent(NamedTuple):
    """A message sent or delivered at a node, in the order of the node's log."""

    node: str
    life: int
    sequence: int
    is_sent: bool
    message: MessageId


def misordered_steps(steps: Iterable[CausalEvent]) -> list[CausalEvent]:
    """Return the deliveries that came after one of their effects, from the logs of all nodes.

    Complexity: O(steps · nodes). A message whose sending is not in the logs has only itself as
    past.
    """
    queues: dict[tuple[str, int], deque[CausalEvent]] = {}
    for step in sorted(steps, key=lambda one: (one.node, one.life, one.sequence)):
        queues.setdefault((step.node, step.life), deque()).append(step)
    unsent = {one.message for queue in queues.values() for one in queue if one.is_sent}
    known: dict[tuple[str, int], dict[str, int]] = {place: {} for place in queues}
    past: dict[MessageId, dict[str, int]] = {}
    wrong: list[CausalEvent] = []
    while any(queues.values()):
        moved = False
        for place, queue in queues.items():
            while queue and (queue[0].is_sent or queue[0].message not in unsent):
                _take(queue.popleft(), known[place], past, unsent, wrong)
                moved = True
        if not moved:  # a cycle: the logs contradict each other; continue without the missing sends
            unsent.clear()
    return wrong


def _take(
    step: CausalEvent,
    known: dict[str, int],
    past: dict[MessageId, dict[str, int]],
    unsent: set[MessageId],
    wrong: list[CausalEvent],
) -> None:
    sender, stamp = step.message
    if step.is_sent:
        known[sender] = max(known.get(sender, 0), stamp)
        past[step.message] = dict(known)
        unsent.discard(step.message)
        return
    if known.get(sender, 0) >= stamp:
        wrong.append(step)
    for name, latest in past.get(step.message, {sender: stamp}).items():
        if latest > known.get(name, 0):
            known[name] = latest


def causal_rows(files: Segment, facts: NodeFacts, reach_us: int) -> pd.DataFrame:
    """Return a segment's rows about causal groups, each in all intervals that need it.

    An interval also sees the `reach_us` after it: the longest lifetime plus the clock skew.
    """
    columns = ("sequence", "t", "step", "group", "sender", "stamp_us", "lifetime_us")
    rows: pd.DataFrame = read_part(files, "causal", columns).to_pandas()
    rows = rows[rows["step"].isin(["sent", "delivered"])].astype(
        {"step": "object", "group": "object", "sender": "object"}
    )
    starts = np.array([at for at, _ in facts.starts], dtype=np.int64)
    rows["life"] = np.searchsorted(starts, rows["sequence"].to_numpy(np.int64), "right")
    rows["ms"] = rows["t"].astype("datetime64[ms, UTC]").astype("int64")
    rows["node"] = files.node
    length_us = max(STRETCH_US, reach_us)
    rows["stretch"] = rows["stamp_us"] // length_us
    rows["own"] = True
    before = rows[rows["stamp_us"] % length_us <= reach_us].copy()
    before["stretch"] -= 1
    before["own"] = False
    return pd.concat([rows, before], ignore_index=True)


def late_rows(rows: pd.DataFrame, skew_ms: int) -> list[dict[str, Any]]:
    """Return the deliveries after the message's lifetime."""
    done = rows[rows["own"] & (rows["step"] == "delivered")]
    over_us = done["ms"] * 1000 - done["stamp_us"] - done["lifetime_us"]
    late = done.assign(over_us=over_us)[over_us > skew_ms * 1000]
    return [
        _fault(one, "late", f"delivered {one['over_us'] // 1000} ms after its lifetime")
        for one in records_of(late)
    ]


def misordered_rows(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the out-of-order deliveries in one interval of one group."""
    steps = [
        CausalEvent(node, life, sequence, step == "sent", (sender, stamp))
        for node, life, sequence, step, sender, stamp in zip(
            *(rows[n] for n in ("node", "life", "sequence", "step", "sender", "stamp_us")),
            strict=True,
        )
    ]
    wrong = {(one.node, one.sequence) for one in misordered_steps(steps)}
    why = "something that it had caused was delivered before it"
    places = zip(rows["node"], rows["sequence"], strict=True)
    is_wrong = np.array([place in wrong for place in places], dtype=np.bool_)
    done = rows[is_wrong & rows["own"].to_numpy(np.bool_) & (rows["step"] == "delivered")]
    return [_fault(one, "misordered", why) for one in records_of(done)]


def _fault(one: dict[str, Any], kind: str, why: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": one["node"],
        "sequence": one["sequence"],
        "ms": one["ms"],
        "topic": one["group"],
        "publisher": f"$node/{one['sender']}",
        "receiver": f"$node/{one['node']}",
        "why": why,
    }
