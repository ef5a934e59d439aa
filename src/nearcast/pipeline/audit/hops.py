"""Checks messages between nodes: those that one node sent to another against those that arrived.

A message has no id between nodes: assigning one would cost the hot path something per message. Both
logs have its bytes. So the n-th message of some content that node a sent to node b is the n-th of
that content which b received from a; equal messages may stand for one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nearcast.eventlog.log_files import PEER, Segment, read_part
from nearcast.pipeline.audit.deliveries import Finding, SegmentEvents, codes_of, longs
from nearcast.pipeline.audit.logs import FOREVER, NodeFacts, Span, records_of
from nearcast.pipeline.audit.subscription_timeline import Flags, Longs, SubscriptionTimeline

_NONE: Longs = np.zeros(0, dtype=np.int64)
NEAR_A_GAP = "between nodes: a gap, a crash or the end of a log is near"
NO_LOG = "there is no log of the other node"
_OWN = "$nearcast/"  # messages of the nodes themselves: their sender logs no event
HOP_COLUMNS = (
    "side", "origin", "target", "content", "level", "sequence", "ms", "topic", "publisher",
    "lifetime_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far the clocks of two nodes may differ, and how long a change takes to reach all nodes.

    `settle_ms` is also how long a message may be in flight when a log ends.
    """

    skew_ms: int = 1_000
    settle_ms: int = 5_000


def blind_spans(nodes: Mapping[str, NodeFacts], allowance: Allowance) -> dict[str, list[Span]]:
    """Return for each node the spans (ms) in which its log may lack sent or received messages."""
    spans: dict[str, list[Span]] = {}
    settle = allowance.settle_ms
    for node, facts in nodes.items():
        spans[node] = [
            (start - settle, min(end, FOREVER - settle) + settle) for start, end in facts.crashes
        ]
        spans[node].append((facts.until_ms - settle, FOREVER))
        if facts.is_sampled or facts.doubts:
            spans[node] = [(-FOREVER, FOREVER)]
    return spans


def in_spans(values: Longs, spans: list[Span]) -> Flags:
    """Return which values lie in one of the spans."""
    inside = np.zeros(len(values), np.bool_)
    for start, end in spans:
        inside |= (values >= start) & (values < end)
    return inside


# --- rows of one segment --------------------------------------------------------------------------


def hops_of(files: Segment, events: SegmentEvents) -> pd.DataFrame:
    """Return the messages sent to and received from other nodes; `events` need payloads."""
    rows = read_part(files, "deliveries", ("sequence", "receiver", "qos"))
    codes, names = codes_of(rows["receiver"])
    is_peer = np.array([name.startswith(PEER) for name in names], dtype=np.bool_)
    chosen = np.flatnonzero(is_peer[codes]) if len(codes) else codes
    numbers = longs(rows["sequence"])[chosen]
    at = np.minimum(np.searchsorted(events.sequence, numbers), max(len(events) - 1, 0))
    known = events.sequence[at] == numbers if len(events) else np.zeros(len(numbers), np.bool_)
    known &= events.is_client[at] if len(events) else known
    targets = [names[code][len(PEER) :] for code in codes[chosen][known].tolist()]
    out = _side(events, at[known], "out")
    out["origin"], out["target"] = files.node, targets
    out["level"] = longs(rows["qos"])[chosen][known]
    return pd.concat([_not_dropped(files, out), _arrivals(files, events)], ignore_index=True)


def _not_dropped(files: Segment, out: pd.DataFrame) -> pd.DataFrame:
    drops = read_part(files, "drops", ("sequence", "receiver")).to_pandas()
    gone = set(zip(drops["sequence"], drops["receiver"].astype("object"), strict=True))
    pairs = zip(out["sequence"], PEER + out["target"].astype("object"), strict=True)
    return out[[pair not in gone for pair in pairs]] if gone else out


def _arrivals(files: Segment, events: SegmentEvents) -> pd.DataFrame:
    way, ways = codes_of(events.table["way"])
    from_node = np.array([name.startswith(PEER) for name in events.publishers], dtype=np.bool_)
    # A message for a share group here also comes from a node; its arrival is logged as CHOSEN.
    is_arrival = np.isin(way, [ways.index(one) for one in ("node", "chosen") if one in ways])
    is_own = np.array([topic.startswith(_OWN) for topic in events.topics], dtype=np.bool_)
    chosen = way
    if len(events):
        is_hop = is_arrival & from_node[events.publisher] & ~is_own[events.topic]
        chosen = np.flatnonzero(is_hop)
    came = _side(events, chosen, "in")
    came["origin"] = [name.removeprefix(PEER) for name in came["publisher"]]
    came["target"] = files.node
    came["level"] = events.qos[chosen]
    return came


def _side(events: SegmentEvents, chosen: Longs, side: str) -> pd.DataFrame:
    lifetimes = longs(events.table["lifetime_ms"].take(chosen).fill_null(-1))
    frame = rows_of(events, chosen).assign(
        side=side, origin="", target="", level=0, lifetime_ms=lifetimes
    )
    return frame[list(HOP_COLUMNS)]


def rows_of(events: SegmentEvents, chosen: Longs) -> pd.DataFrame:
    """Return the columns that all rows about some events have; `content` is a hash of them."""
    return pd.DataFrame(
        {
            "content": _content_of(events, chosen),
            "sequence": events.sequence[chosen],
            "ms": events.ms[chosen],
            "topic": np.array(events.topics, dtype=object)[events.topic[chosen]],
            "publisher": np.array(events.publishers, dtype=object)[events.publisher[chosen]],
        }
    )


def _content_of(events: SegmentEvents, chosen: Longs) -> Longs:
    """Return a hash of topic and payload for some events."""
    topics = np.array(events.topics, dtype=object)[events.topic[chosen]]
    payloads = events.table["payload"].take(chosen).to_numpy()
    content = pd.util.hash_array(payloads.astype(object), categorize=False).view(np.int64)
    if len(topics):
        content = content ^ (pd.util.hash_array(topics).view(np.int64) >> 1)
    return np.asarray(content, dtype=np.int64)


def unsent(
    events: SegmentEvents,
    timeline: SubscriptionTimeline,
    others: Mapping[str, SubscriptionTimeline],
    real: Mapping[str, Longs],
    allowance: Allowance,
) -> list[Finding]:
    """Return events that this node should have sent to a peer with a subscriber, and did not send.

    A subscription counts from `settle_ms` after its record until `settle_ms` before its end, while
    the link has been up for as long. Plain subscriptions only: content subscriptions and share
    groups are routed differently. `real` has the numbers of the events that were sent to each node
    or dropped for it.
    """
    facts = {name: one.facts for name, one in others.items()}
    blind = blind_spans({"": timeline.facts, **facts}, allowance)
    found = []
    for name, other in others.items():
        if blind[name][0][0] == -FOREVER:
            continue
        due = np.flatnonzero(_wanted(events, other, allowance) & events.is_client)
        due = due[~(events.limited[due] | events.ordered[due])]
        code = np.full(len(due), timeline.code(PEER + name), dtype=np.int64)
        there, since_ms = timeline.connected(code, events.sequence[due])
        due = due[there & (events.ms[due] >= since_ms + allowance.settle_ms)]
        due = due[~np.isin(events.sequence[due], real.get(name, _NONE))]
        unsure = in_spans(events.ms[due], blind[""]) | in_spans(events.ms[due], blind[name])
        why = "a client there wants it, and the node was not sent it"
        for kind, some, text in (("lost", ~unsure, why), ("unknown", unsure, NEAR_A_GAP)):
            if some.any():
                found.append(Finding(kind, due[some], [PEER + name] * int(some.sum()), text))
    return found


def _wanted(events: SegmentEvents, other: SubscriptionTimeline, allowance: Allowance) -> Flags:
    """Return which events some client of the other node certainly subscribed to."""
    subscriptions, settle = other.subscriptions, allowance.settle_ms
    plain = ~(subscriptions.peer | subscriptions.selective) & (subscriptions.group == 0)
    wanted = np.zeros(len(events), np.bool_)
    order = np.argsort(events.topic, kind="stable")
    bounds = np.searchsorted(events.topic[order], np.arange(len(events.topics) + 1))
    for number, topic in enumerate(events.topics):
        fitting = other.on_topic(topic)
        fitting = fitting[plain[fitting]]
        start = subscriptions.since_ms[fitting] + settle
        end = np.minimum(subscriptions.until_ms[fitting], other.facts.until_ms) - settle
        lasting = start < end
        if lasting.any():
            some = order[bounds[number] : bounds[number + 1]]
            begun = np.searchsorted(np.sort(start[lasting]), events.ms[some], "right")
            ended = np.searchsorted(np.sort(end[lasting]), events.ms[some], "right")
            wanted[some] = begun > ended
    return wanted


# --- both ends joined -----------------------------------------------------------------------------


def judge_hops(
    rows: pd.DataFrame, nodes: Mapping[str, NodeFacts], allowance: Allowance
) -> list[dict[str, Any]]:
    """Return faults, and rows of the kinds `unknown` and `allowed`, from the hops of some topics.

    All rows have one origin and one target. Allowed are losses at QoS 0 and duplicates at QoS 1,
    where a link broke.
    """
    keys, ends = ["content", "level"], {name: rows[name].iloc[0] for name in ("origin", "target")}
    rows = rows.sort_values("sequence", kind="stable")
    sent, came = (rows[rows["side"] == side].drop(columns=list(ends)) for side in ("out", "in"))
    ranked = [one.assign(place=one.groupby(keys, sort=False).cumcount()) for one in (sent, came)]
    pairs = ranked[0].merge(ranked[1], on=[*keys, "place"], how="outer", suffixes=("_a", "_b"))
    pairs = pairs.assign(**ends)
    blind = blind_spans(nodes, allowance)
    alone = pairs[pairs["ms_a"].isna() | pairs["ms_b"].isna()]
    found = [_unmatched(one, nodes, blind) for one in records_of(alone)]
    both = pairs[pairs["ms_a"].notna() & pairs["ms_b"].notna()]
    return found + _late(both, allowance) + _misordered(both)


def _unmatched(
    one: dict[str, Any], nodes: Mapping[str, NodeFacts], blind: dict[str, list[Span]]
) -> dict[str, Any]:
    is_lost = bool(pd.isna(one["ms_b"]))
    side = "a" if is_lost else "b"
    ends = (one["origin"], one["target"])
    at = np.array([int(one[f"ms_{side}"])])
    row = {
        "node": one["origin"] if is_lost else one["target"],
        "receiver": PEER + one["target"],
        **{name: one[f"{name}_{side}"] for name in ("sequence", "ms", "topic", "publisher")},
    }
    if any(end not in nodes for end in ends):
        return row | {"kind": "unknown", "why": NO_LOG}
    if any(in_spans(at, blind[end])[0] for end in ends):
        return row | {"kind": "unknown", "why": NEAR_A_GAP}
    if is_lost and one["level"] == 0:
        return row | {"kind": "allowed", "why": "QoS 0: it did not arrive at the other node"}
    if not is_lost and one["level"] == 1:
        return row | {"kind": "allowed", "why": "QoS 1: it came to the other node again"}
    if is_lost:
        return row | {"kind": "lost", "why": f"it did not arrive at node {one['target']}"}
    return row | {"kind": "doubled", "why": f"it came again from node {one['origin']}"}


def _late(both: pd.DataFrame, allowance: Allowance) -> list[dict[str, Any]]:
    """Return arrivals after the message's lifetime.

    It is sent in whole seconds, so allow one more.
    """
    took_ms = both["ms_b"] - both["ms_a"]
    limit = both["lifetime_ms_a"] + allowance.skew_ms + 1_000
    late = both[(both["lifetime_ms_a"] >= 0) & (took_ms > limit)]
    return [
        _arrived(
            one, "late", f"it arrived {one['ms_b'] - one['ms_a']:.0f} ms after its publication"
        )
        for one in records_of(late)
    ]


def _misordered(both: pd.DataFrame) -> list[dict[str, Any]]:
    """Return arrivals after a later message of the same publisher, topic and QoS."""
    line = ["publisher_a", "topic_a", "level"]
    rows = both.sort_values("sequence_b", kind="stable")
    highest = rows.groupby(line, sort=False)["sequence_a"].cummax()
    why = "a later message of its publisher and topic came first"
    wrong = rows[highest > rows["sequence_a"]]
    return [_arrived(one, "misordered", why) for one in records_of(wrong)]


def _arrived(one: dict[str, Any], kind: str, why: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": one["target"],
        "sequence": one["sequence_b"],
        "ms": one["ms_b"],
        "topic": one["topic_a"],
        "publisher": one["publisher_a"],
        "receiver": PEER + one["target"],
        "why": why,
    }
