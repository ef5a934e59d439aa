"""Checks `$near` and `$area` between nodes: events published in range against deliveries.

    node a: event at t, payload ──► position ────┐
    node b: positions of its client at t ± skew ─┴──► due, perhaps, or not
    node b: deliveries of other nodes' events to its client ──► as many as that?

The gateway of a client decides exactly whether the client was in range when an event was published.
This module repeats the decision from the logs of both nodes, as far as their clocks allow: a client
that was in range from `skew` before an event until `skew` after it is certainly due the event.
Messages are compared by content only, as in `hops.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearcast.eventlog.log_files import PEER, Segment, read_part
from nearcast.model.sphere import distances_m
from nearcast.pipeline.audit.conditions import NO, PERHAPS, SURELY_M, YES, ConditionJudge
from nearcast.pipeline.audit.deliveries import SegmentEvents, codes_of, longs
from nearcast.pipeline.audit.hops import NEAR_A_GAP, Allowance, blind_spans, in_spans, rows_of
from nearcast.pipeline.audit.logs import FOREVER, NodeFacts, Span, records_of
from nearcast.pipeline.audit.subscription_timeline import Flags, Longs, SubscriptionTimeline

Floats = NDArray[np.float64]
UNSURE = "where a client was when another node's event came, by two clocks"
_PURSUED_MS = 60_000  # how long a node retries an event with a place until other nodes acknowledge
_KEYS = ["receiver", "content"]
_MOST_STEPS = 6  # positions of a client within twice the skew; with more, each is checked


def places_of(
    files: Segment,
    events: SegmentEvents,
    timeline: SubscriptionTimeline,
    others: Mapping[str, SubscriptionTimeline],
    judge: ConditionJudge,
    allowance: Allowance,
) -> pd.DataFrame:
    """Return rows for a segment's events due at clients of other nodes, and for events from others.

    `side` is due, perhaps, or open if other nodes choose (an event of this node, for a client of
    `target`), got or dropped (at this node, by one of its clients).
    """
    parts = [_got(files, events, timeline, judge)]
    for name, other in (*others.items(), (files.node, timeline)):
        offers = _Offers(events, timeline, name, other, judge, allowance).find()
        parts.append(offers.assign(node=files.node, target=name))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def fitting_places(timeline: SubscriptionTimeline, judge: ConditionJudge, topic: str) -> Longs:
    """Return the subscriptions with a place that match a topic, if its events can be decoded."""
    if not judge.reads(topic):
        return np.zeros(0, dtype=np.int64)
    fitting, subscriptions = timeline.on_topic(topic), timeline.subscriptions
    fitting = fitting[~subscriptions.peer[fitting] & (subscriptions.group[fitting] == 0)]
    texts = [subscriptions.texts[number] for number in subscriptions.text[fitting].tolist()]
    chosen: Longs = fitting[np.array([_has_place(text) for text in texts], dtype=np.bool_)]
    return chosen


def _has_place(text: str) -> bool:
    return "$near/" in text or "$area/" in text


class _Offers:
    """Events of one node that concern clients of another node with a `$near` or `$area`.

    Also used for clients of the same node, where all nodes together choose the receivers
    (distributed top-k).

    Complexity: O(events · subscriptions with a place that match their topics); an event far from a
    client, as most are, costs some nanoseconds.
    """

    def __init__(
        self,
        events: SegmentEvents,
        timeline: SubscriptionTimeline,
        name: str,
        other: SubscriptionTimeline,
        judge: ConditionJudge,
        allowance: Allowance,
    ) -> None:
        self._events = events
        self._other = other
        self._judge = judge
        self._allowance = allowance
        code = np.full(len(events), timeline.code(PEER + name), dtype=np.int64)
        there, since_ms = timeline.connected(code, events.sequence)
        self._linked = there & (events.ms >= since_ms + allowance.settle_ms)
        self._leave = events.is_client & ~events.ordered
        if other is timeline:  # to the same node only events of a distributed top-k
            self._leave &= events.limited

    def find(self) -> pd.DataFrame:
        """Return a row for each event and client for which it is due or may be."""
        events, names = self._events, self._other.subscriptions.names
        rows = [
            (at, names[client], level)
            for at, wanted in groupby(self._candidates(), key=itemgetter(0))
            for client, level in self._clients(
                at, [subscription for _, subscription in wanted]
            ).items()
        ]
        at = np.array([row[0] for row in rows], dtype=np.int64)
        level = np.array([one[2] for one in rows], dtype=np.int64)
        lifetimes = longs(events.table["lifetime_ms"].fill_null(FOREVER))
        is_sure = (level >= 0) & self._linked[at] & (lifetimes[at] >= _PURSUED_MS)
        return rows_of(events, at).assign(
            side=np.where(events.limited[at], "open", np.where(is_sure, "due", "perhaps")),
            receiver=[one[1] for one in rows],
            level=np.maximum(level, 0),
        )

    def _candidates(self) -> list[tuple[int, int]]:
        """Return pairs of event and subscription that may match; most are certainly too far."""
        events, subscriptions, settle = (
            self._events,
            self._other.subscriptions,
            self._allowance.settle_ms,
        )
        places = np.full((2, len(events)), np.nan)
        some_of: dict[int, list[Longs]] = {}
        for number, topic in enumerate(events.topics):
            fitting = fitting_places(self._other, self._judge, topic)
            if len(fitting):
                some = np.flatnonzero((events.topic == number) & self._leave)
                places[:, some] = self._places(topic, some)
                for subscription in fitting.tolist():
                    some_of.setdefault(subscription, []).append(some)
        found: list[tuple[int, int]] = []
        for subscription, parts in some_of.items():
            some = np.concatenate(parts)
            ms = events.ms[some]
            meets = (ms >= subscriptions.since_ms[subscription] - settle) & (
                ms - settle <= subscriptions.until_ms[subscription]
            )
            meets &= ~self._is_far(subscription, ms, *places[:, some]) | events.limited[some]
            found += [(at, subscription) for at in some[meets].tolist()]
        return sorted(found)

    def _places(self, topic: str, some: Longs) -> Floats:
        """Return the longitudes and the latitudes of events, NaN where that is no point."""
        places = np.full((2, len(some)), np.nan)
        for place, payload in enumerate(self._events.table["payload"].take(some).to_pylist()):
            position = self._judge.position(topic, payload)
            if position is not None:
                places[:, place] = position
        return places

    def _is_far(self, subscription: int, ms: Longs, lons: Floats, lats: Floats) -> Flags:
        """Return which events were out of range of the client at every position it may have had."""
        subscriptions, skew = self._other.subscriptions, self._allowance.skew_ms
        near_m = self._judge.reach_m(subscriptions.texts[subscriptions.text[subscription]])
        far = np.zeros(len(ms), np.bool_)
        if near_m is None:
            return far
        client = subscriptions.names[subscriptions.client[subscription]]
        first, last, is_sure = self._other.stays(client, ms - skew, ms + skew)
        far |= is_sure & (last - first < _MOST_STEPS)
        track = self._other.track(client)
        own_lons, own_lats = np.array(track.lons), np.array(track.lats)
        for step in range(_MOST_STEPS if far.any() else 0):
            asked = np.flatnonzero(far)
            at = np.minimum(first[asked] + step, last[asked])
            away_m = distances_m(lons[asked], lats[asked], own_lons[at], own_lats[at])
            far[asked] = away_m > near_m + SURELY_M
        return far

    def _clients(self, at: int, wanted: list[int]) -> dict[int, int]:
        """Return the clients that an event is for, with the QoS; -1 where that is not certain."""
        subscriptions, ms, settle = (
            self._other.subscriptions,
            int(self._events.ms[at]),
            self._allowance.settle_ms,
        )
        payload = self._events.table["payload"][at].as_py()
        found: dict[int, int] = {}
        for subscription in wanted:
            verdict = PERHAPS if self._events.limited[at] else self._ask(at, payload, subscription)
            if verdict == NO:
                continue
            lasts = (
                subscriptions.since_ms[subscription] + settle
                <= ms
                <= subscriptions.until_ms[subscription] - settle
            )
            level = int(min(self._events.qos[at], subscriptions.qos[subscription]))
            client = int(subscriptions.client[subscription])
            found[client] = max(found.get(client, -1), level if verdict == YES and lasts else -1)
        return found

    def _ask(self, at: int, payload: bytes, subscription: int) -> int:
        """Evaluate the conditions at all positions that the client may have had at the time."""
        events, subscriptions, skew = (
            self._events,
            self._other.subscriptions,
            self._allowance.skew_ms,
        )
        text, topic = (
            subscriptions.texts[subscriptions.text[subscription]],
            events.topics[events.topic[at]],
        )
        if "$near/" not in text:
            return self._judge.covers(topic, payload, text, None)
        ms, client = int(events.ms[at]), subscriptions.names[subscriptions.client[subscription]]
        places = self._other.places(client, ms - skew, ms + skew)
        verdicts = {self._judge.covers(topic, payload, text, one) for one in places}
        return verdicts.pop() if len(verdicts) == 1 else PERHAPS


def _got(
    files: Segment, events: SegmentEvents, timeline: SubscriptionTimeline, judge: ConditionJudge
) -> pd.DataFrame:
    """Return deliveries and drops of other nodes' events for clients that subscribe with a place.

    `own` marks events that a holder found for the client, unlike those that reached the node
    anyway.
    """
    parts = []
    for table, side in (("deliveries", "got"), ("drops", "dropped")):
        rows = read_part(files, table, ("sequence", "receiver"))
        numbers = longs(rows["sequence"])
        codes, names = codes_of(rows["receiver"])
        if not len(events) or not len(numbers):
            continue
        at = np.minimum(np.searchsorted(events.sequence, numbers), len(events) - 1)
        kept = (events.sequence[at] == numbers) & ~events.is_client[at]
        kept &= _wants(events, timeline, judge, at, [names[code] for code in codes.tolist()])
        at, codes = at[kept], codes[kept]
        found = rows_of(events, at).assign(
            side=side,
            node=files.node,
            target=files.node,
            receiver=np.array(names, dtype=object)[codes],
            level=events.qos[at],
        )
        parts.append(found.assign(own=events.is_chosen[at] & (found["publisher"] == "")))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"side": []})


def _wants(
    events: SegmentEvents,
    timeline: SubscriptionTimeline,
    judge: ConditionJudge,
    at: Longs,
    receivers: list[str],
) -> Flags:
    """Return for which events the receiver ever had a matching subscription with a place."""
    subscriptions = timeline.subscriptions
    wanting = [
        {
            subscriptions.names[client]
            for client in subscriptions.client[fitting_places(timeline, judge, topic)].tolist()
        }
        for topic in events.topics
    ]
    topics = events.topic[at].tolist()
    return np.array(
        [name in wanting[topic] for name, topic in zip(receivers, topics, strict=True)], np.bool_
    )


# --- both ends joined -----------------------------------------------------------------------------


def judge_places(
    rows: pd.DataFrame, nodes: Mapping[str, NodeFacts], allowance: Allowance
) -> list[dict[str, Any]]:
    """Return faults and rows of kind `unknown`; all rows concern clients of one node.

    Only events due at QoS 1 or 2 can be lost. Of equal copies the last ones count as wrong.
    """
    rows = rows.sort_values("ms", kind="stable")
    key = np.asarray(rows.groupby(_KEYS, sort=False).ngroup(), dtype=np.int64)
    side, level = rows["side"].to_numpy(dtype=object), np.asarray(rows["level"], dtype=np.int64)
    due, perhaps = side == "due", side == "perhaps"
    own = np.asarray(rows["own"].astype("boolean").fillna(value=False), dtype=np.bool_)
    chosen = (side == "got") & own
    missing = _count(key, due) - _count(key, (side == "got") | (side == "dropped"))
    offered = _count(key, due | perhaps | (side == "open"))

    lost = rows[_last(key, due & (level > 0), missing)]
    vague = rows[_last(key, perhaps, missing + _count(key, perhaps))]
    is_stray = _last(key, chosen, _count(key, chosen) - offered)
    strays, is_alone = rows[is_stray], offered[key[is_stray]] == 0
    blind = blind_spans(nodes, allowance)
    anywhere = [
        (start, min(end, FOREVER - _PURSUED_MS) + _PURSUED_MS)
        for spans in blind.values()
        for start, end in spans
    ]
    why = f"a client of node {rows['target'].iloc[0]} was in range, and was not handed it"
    is_blind = [_is_blind(lost, column, blind) for column in ("node", "target")]
    found = _told(lost, "lost", why, is_blind[0] | is_blind[1])
    found += _told(vague, "unknown", UNSURE, np.zeros(len(vague), np.bool_))
    for some, kind, why in (
        (strays[is_alone], "unasked", "no node has published it in range of the client"),
        (strays[~is_alone], "doubled", "handed over more often than it was published in range"),
    ):
        found += _told(some, kind, why, in_spans(_instants(some), anywhere))
    return found


def _count(key: Longs, chosen: Flags) -> Longs:
    """Return the number of chosen rows of each key."""
    return np.bincount(key[chosen], minlength=len(key)).astype(np.int64)


def _last(key: Longs, chosen: Flags, counts: Longs) -> Flags:
    """Return which chosen rows are the last `counts[key]` of their key."""
    at = np.flatnonzero(chosen)
    order = at[np.argsort(key[at], kind="stable")]
    keys = key[order]
    from_end = np.searchsorted(keys, keys, "right") - 1 - np.arange(len(keys))
    found = np.zeros(len(key), np.bool_)
    found[order[from_end < counts[keys]]] = True
    return found


def _is_blind(rows: pd.DataFrame, column: str, blind: dict[str, list[Span]]) -> Flags:
    """Return for which rows the log of the node in `column` may lack records."""
    names, unsure = rows[column].to_numpy(dtype=object), np.zeros(len(rows), np.bool_)
    for name in set(names.tolist()):
        unsure |= (names == name) & in_spans(_instants(rows), blind.get(name, []))
    return unsure


def _instants(rows: pd.DataFrame) -> Longs:
    return np.asarray(rows["ms"], dtype=np.int64)


def _told(rows: pd.DataFrame, kind: str, why: str, unsure: Flags) -> list[dict[str, Any]]:
    columns = ["node", "sequence", "ms", "topic", "publisher", "receiver"]
    kinds = np.where(unsure, "unknown", kind)
    whys = np.where(unsure, NEAR_A_GAP, why)
    return records_of(rows[columns].assign(kind=kinds, why=whys))
