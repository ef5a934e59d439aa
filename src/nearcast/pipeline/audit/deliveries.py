"""Checks one segment of one node's log: deliveries that were due against those that happened.

    events ──topics──► subscriptions in effect ──► due pairs ─┐
    deliveries, drops ─────────────────────────► real pairs ──┴──► lost, doubled, unasked

A pair is an event and a client, packed into one number; pairs are joined by sorting. A node logs an
event, its deliveries and its drops in one batch, so a segment has all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from nearcast.eventlog.log_files import Segment, read_part
from nearcast.pipeline.audit.conditions import NO, PERHAPS, YES, ConditionJudge
from nearcast.pipeline.audit.subscription_timeline import Flags, Longs, SubscriptionTimeline

AFTER_A_GAP = "after a gap in the log"
CONDITIONS = "whether the conditions of a subscription hold"
_EVENT = ("sequence", "t", "topic", "publisher", "qos", "limited", "way", "lifetime_ms")


@dataclass(frozen=True, slots=True)
class Finding:
    """Rows of one kind: indexes of events in the segment, receivers, and the reason.

    `numbers` has the sequence numbers instead where the events are not in the segment.
    """

    kind: str
    events: Longs
    receivers: list[str]
    why: str
    numbers: Longs | None = None


@dataclass(slots=True)
class SegmentEvents:
    """A segment's events by column.

    `topic` and `publisher` index the lists of names beside them.
    """

    table: pa.Table
    sequence: Longs
    ms: Longs
    topic: Longs
    topics: list[str]
    publisher: Longs
    publishers: list[str]
    qos: Longs
    is_client: Flags
    is_chosen: Flags
    limited: Flags
    ordered: Flags  # sent to other nodes in causal order, or kept for that

    def __len__(self) -> int:
        return len(self.sequence)


def read_events(files: Segment, *, with_payload: bool) -> SegmentEvents:
    """Return the events of a segment, sorted by sequence number."""
    columns = (*_EVENT, "payload") if with_payload else _EVENT
    table = read_part(files, "events", columns).sort_by("sequence").combine_chunks()
    topic, topics = codes_of(table["topic"])
    publisher, publishers = codes_of(table["publisher"])
    way, ways = codes_of(table["way"])
    sequence = longs(table["sequence"])
    causal = read_part(files, "causal", ("sequence", "step"))
    leaves = np.isin(np.array(causal["step"].to_pylist(), dtype=object), ["sent", "kept"])
    return SegmentEvents(
        table,
        sequence,
        longs(table["t"].cast(pa.int64())),
        topic,
        topics,
        publisher,
        publishers,
        longs(table["qos"]),
        way == (ways.index("client") if "client" in ways else -1),
        way == (ways.index("chosen") if "chosen" in ways else -1),
        np.asarray(table["limited"].to_numpy(zero_copy_only=False), dtype=np.bool_),
        np.isin(sequence, longs(causal["sequence"])[leaves]),
    )


def longs(column: pa.ChunkedArray) -> Longs:
    """Return a column as an int64 array."""
    return np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)


def codes_of(column: pa.ChunkedArray) -> tuple[Longs, list[str]]:
    """Return a text column as indexes, and the list of texts."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        if not whole.num_chunks:
            return np.zeros(0, np.int64), []
        whole = whole.chunk(0)
    numbers = np.asarray(whole.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return numbers, whole.dictionary.to_pylist()


def judge_deliveries(
    files: Segment,
    events: SegmentEvents,
    timeline: SubscriptionTimeline,
    judge: ConditionJudge | None,
) -> list[Finding]:
    """Return the faults in a segment; kind `unknown` where the log does not decide.

    Complexity: O(p log p) for p pairs of an event and a client that subscribed to it or received
    it.
    """
    real = _Real(files, events, timeline)
    asked = _Asked(events, timeline, judge)
    clients = max(len(timeline.code_of), 1)
    names = list(timeline.code_of)
    doubt = _doubtful(events.sequence, timeline)
    found = [
        *_judge_own(events, asked, real, clients, doubt, names),
        *_judge_groups(events, asked, real, clients, doubt, timeline),
    ]
    if len(real.orphans):
        why = "a delivery of an event that is not in the log"
        receivers = [""] * len(real.orphans)
        found.append(Finding("unknown", real.orphans, receivers, why, real.orphans))
    return found


def _doubtful(numbers: Longs, timeline: SubscriptionTimeline) -> Flags:
    doubt = np.zeros(len(numbers), np.bool_)
    for start, end in timeline.facts.doubts:
        doubt |= (numbers >= start) & (numbers < end)
    return doubt


class _Real:
    """The pairs of event and client that were delivered, and those dropped with a reason."""

    def __init__(
        self, files: Segment, events: SegmentEvents, timeline: SubscriptionTimeline
    ) -> None:
        event, client, known = _pairs(files, "deliveries", events, timeline)
        self.orphans = _numbers(files, "deliveries")[~known]
        self.event, self.client = event[known], client[known]
        event, client, known = _pairs(files, "drops", events, timeline)
        self.dropped_event, self.dropped_client = event[known], client[known]


def _numbers(files: Segment, table: str) -> Longs:
    return longs(read_part(files, table, ("sequence",))["sequence"])


def _pairs(
    files: Segment, table: str, events: SegmentEvents, timeline: SubscriptionTimeline
) -> tuple[Longs, Longs, Flags]:
    rows = read_part(files, table, ("sequence", "receiver"))
    numbers = longs(rows["sequence"])
    codes, names = codes_of(rows["receiver"])
    of_name = np.array([timeline.code(name) for name in names], dtype=np.int64)
    client = of_name[codes] if len(codes) else codes
    if not len(events):
        return numbers, client, np.zeros(len(numbers), np.bool_)
    at = np.minimum(np.searchsorted(events.sequence, numbers), len(events) - 1)
    return at, client, events.sequence[at] == numbers


class _Asked:
    """All pairs of an event and a client with a matching subscription.

    Group, and whether it is due.

    `due` is YES, PERHAPS (conditions that cannot be checked) or NO (conditions do not hold, or QoS
    0 for a client that was disconnected).
    """

    def __init__(
        self, events: SegmentEvents, timeline: SubscriptionTimeline, judge: ConditionJudge | None
    ) -> None:
        subscriptions = timeline.subscriptions
        event, subscription = _in_effect(events, timeline)
        own = np.array(
            [timeline.code_of.get(name, -1) for name in events.publishers], dtype=np.int64
        )
        # [MQTT-3.8.3-3]: with No Local a client does not receive its own publications.
        is_own = subscriptions.no_local[subscription] & (
            subscriptions.client[subscription] == own[events.publisher[event]]
        )
        travels = events.is_client[event] & ~events.ordered[event]
        kept = ~is_own & (~subscriptions.peer[subscription] | travels)
        self.event, subscription = event[kept], subscription[kept]
        self.client, self.group = (
            subscriptions.client[subscription],
            subscriptions.group[subscription],
        )
        covers = np.where(subscriptions.selective[subscription], PERHAPS, YES)
        if judge is not None:
            choosy = np.flatnonzero(subscriptions.selective[subscription])
            by_event = np.argsort(self.event[choosy], kind="stable")  # decodes each event once
            for at in choosy[by_event].tolist():
                covers[at] = _ask(
                    judge, events, timeline, int(self.event[at]), int(subscription[at])
                )
        lossy = np.minimum(events.qos[self.event], subscriptions.qos[subscription]) == 0
        there, _ = timeline.connected(self.client, events.sequence[self.event])
        self.due = np.where(lossy & ~there, NO, covers)


def _in_effect(events: SegmentEvents, timeline: SubscriptionTimeline) -> tuple[Longs, Longs]:
    """Return pairs of event and matching subscription in effect.

    Found by topic, then expanded at once.
    """
    subscriptions = timeline.subscriptions
    order = np.argsort(events.topic, kind="stable")
    bounds = np.searchsorted(events.topic[order], np.arange(len(events.topics) + 1))
    starts: list[Longs] = []
    counts: list[Longs] = []
    chosen: list[Longs] = []
    for number, topic in enumerate(events.topics):
        low, high = bounds[number], bounds[number + 1]
        fitting = timeline.on_topic(topic) if high > low else ()
        if len(fitting):
            numbers = events.sequence[order[low:high]]
            first = np.searchsorted(numbers, subscriptions.since[fitting])
            last = np.searchsorted(numbers, subscriptions.until[fitting])
            starts.append(low + first)
            counts.append(np.maximum(last - first, 0))
            chosen.append(np.asarray(fitting))
    if not starts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    many, begin = np.concatenate(counts), np.concatenate(starts)
    within = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    return order[np.repeat(begin, many) + within], np.repeat(np.concatenate(chosen), many)


def _ask(
    judge: ConditionJudge,
    events: SegmentEvents,
    timeline: SubscriptionTimeline,
    event: int,
    subscription: int,
) -> int:
    text = timeline.subscriptions.texts[timeline.subscriptions.text[subscription]]
    client = timeline.subscriptions.names[timeline.subscriptions.client[subscription]]
    place = timeline.place(client, int(events.sequence[event])) if "$near/" in text else None
    payload = events.table["payload"][event].as_py()
    return judge.covers(events.topics[events.topic[event]], payload, text, place)


def _judge_own(
    events: SegmentEvents,
    asked: _Asked,
    real: _Real,
    clients: int,
    doubt: Flags,
    names: list[str],
) -> list[Finding]:
    """Judge each client: one copy for its own subscriptions, and one more per share group."""
    is_own = asked.group == 0
    pair = asked.event * clients + asked.client
    own, own_due = _best(pair[is_own], asked.due[is_own])
    handed, copies = counted(real.event * clients + real.client)
    dropped, _ = counted(real.dropped_event * clients + real.dropped_client)
    allowed = _among(handed, own) + _times(handed, _memberships(asked, pair))
    judged = ~(events.is_chosen | events.limited)
    missing = ~_among(own, handed) & ~_among(own, dropped) & judged[own // clients]
    unsure = doubt[own // clients]
    stray = (allowed == 0) & ~events.is_chosen[handed // clients]
    stray_unsure = doubt[handed // clients]
    rows = (
        ("doubled", handed[copies > np.maximum(allowed, 1)], "handed over more than once"),
        ("lost", own[missing & (own_due == YES) & ~unsure], "due and not handed over"),
        ("unknown", own[missing & (own_due == YES) & unsure], AFTER_A_GAP),
        ("unknown", own[missing & (own_due == PERHAPS)], CONDITIONS),
        ("unasked", handed[stray & ~stray_unsure], "handed over without a subscription"),
        ("unknown", handed[stray & stray_unsure], AFTER_A_GAP),
    )
    return [
        Finding(kind, some // clients, [names[one] for one in (some % clients).tolist()], why)
        for kind, some, why in rows
        if len(some)
    ]


def _memberships(asked: _Asked, pair: Longs) -> Longs:
    """Return the sorted pairs of event and client, once for each share group of the event."""
    groups = 1 + int(asked.group.max(initial=0))
    members = asked.group > 0
    return counted((pair * groups + asked.group)[members])[0] // groups


def counted(keys: Longs) -> tuple[Longs, Longs]:
    """Return the distinct keys in order, and their counts; faster than np.unique here."""
    keys = np.sort(keys)
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else keys
    return keys[first], np.diff(np.r_[first, len(keys)])


def _among(keys: Longs, others: Longs) -> Flags:
    """Return which keys are in `others`, which is sorted."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    found: Flags = others[at] == keys
    return found


def _best(keys: Longs, values: Any) -> tuple[Longs, Longs]:
    """Return the distinct keys, each with its greatest value."""
    if not len(keys):
        return keys, keys
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], np.asarray(values)[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return keys[first], np.maximum.reduceat(values, first).astype(np.int64)


def _times(keys: Longs, among: Longs) -> Longs:
    """Return how often each key occurs in `among`, which is sorted."""
    low, high = np.searchsorted(among, keys), np.searchsorted(among, keys, "right")
    return (high - low).astype(np.int64)


def _judge_groups(
    events: SegmentEvents,
    asked: _Asked,
    real: _Real,
    clients: int,
    doubt: Flags,
    timeline: SubscriptionTimeline,
) -> list[Finding]:
    """Judge share groups: one member gets the event.

    Only the node where it was published is judged.
    """
    member = asked.group > 0
    if not member.any():
        return []
    groups = 1 + int(asked.group.max())
    pair = (asked.event * clients + asked.client)[member]
    served = np.isin(pair, real.event * clients + real.client) | np.isin(
        pair, real.dropped_event * clients + real.dropped_client
    )
    team = (asked.event * groups + asked.group)[member]
    key, due = _best(team, asked.due[member])
    _, done = _best(team, served.astype(np.int64))
    event = key // groups
    lost = (done == 0) & events.is_client[event] & ~events.limited[event]
    names = [f"$share/{group}" for group, _ in timeline.group_of]
    rows = (
        ("lost", lost & (due == YES) & ~doubt[event], "due to one of the group, handed to none"),
        ("unknown", lost & (due == YES) & doubt[event], AFTER_A_GAP),
        ("unknown", lost & (due == PERHAPS), CONDITIONS),
    )
    return [
        Finding(kind, event[some], [names[g - 1] for g in (key[some] % groups).tolist()], why)
        for kind, some, why in rows
        if some.any()
    ]
