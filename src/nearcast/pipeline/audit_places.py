"""Between nodes: what was published near clients of other nodes, and what these were handed.

    node a: event at t, payload ──► place ──┐
    node b: where its client was at t ± skew ┴──► due, perhaps, or not
    node b: what its client was handed of other nodes' events ──► as often as that?

The node that a client is at finds out, exactly, who was near when something was published. So does
this, from the logs of both, as far as their clocks allow: a client that was in range all the time
from `skew` before an event until `skew` after it is due it for certain. Copies are told apart by
their content only, as for other hops.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearcast.model.sphere import distances_m
from nearcast.pipeline.audit_deliveries import SegmentEvents, codes_of, longs
from nearcast.pipeline.audit_hops import NEAR_A_GAP, Allowance, blind_spans, content_of, in_spans
from nearcast.pipeline.audit_logs import FOREVER, NodeFacts, Segment, Span, read_part, records_of
from nearcast.pipeline.audit_selections import NO, PERHAPS, SURELY_M, YES, ConditionJudge
from nearcast.pipeline.audit_wishes import PEER, Chronicle, Flags, Longs

Floats = NDArray[np.float64]
UNSURE = "where a client was when another node's event came, by two clocks"
_PURSUED_MS = 60_000  # an event with a place is offered to other nodes for so long
_KEYS = ["receiver", "content"]
_MOST_STEPS = 6  # of a client within twice the skew; who takes more is looked at one by one


def places_of(
    files: Segment,
    events: SegmentEvents,
    chronicle: Chronicle,
    others: Mapping[str, Chronicle],
    judge: ConditionJudge,
    allowance: Allowance,
) -> pd.DataFrame:
    """Return what a segment's events mean to clients of other nodes, and what came from others.

    `side` is due, perhaps, or open if others choose (an event of this node, for a client of
    `target`), got or dropped (at this node, by a client of it).
    """
    parts = [_got(files, events, chronicle, judge)]
    for name, other in (*others.items(), (files.node, chronicle)):
        offers = _Offers(events, chronicle, name, other, judge, allowance).find()
        parts.append(offers.assign(node=files.node, target=name))
    return pd.concat([one for one in parts if len(one)] or parts[:1], ignore_index=True)


def _rows_of(events: SegmentEvents, at: Longs) -> pd.DataFrame:
    """Return what the rows of some events have in common."""
    return pd.DataFrame(
        {
            "content": content_of(events, at),
            "sequence": events.sequence[at],
            "ms": events.ms[at],
            "topic": np.array(events.topics, dtype=object)[events.topic[at]],
            "publisher": np.array(events.publishers, dtype=object)[events.publisher[at]],
        }
    )


def fitting_places(chronicle: Chronicle, judge: ConditionJudge, topic: str) -> Longs:
    """Return the wishes of clients for a place that a topic fits, if its events can be judged."""
    if not judge.reads(topic):
        return np.zeros(0, dtype=np.int64)
    fitting, wishes = chronicle.on_topic(topic), chronicle.wishes
    fitting = fitting[~wishes.peer[fitting] & (wishes.group[fitting] == 0)]
    texts = [wishes.texts[number] for number in wishes.text[fitting].tolist()]
    chosen: Longs = fitting[np.array([_has_place(one) for one in texts], dtype=np.bool_)]
    return chosen


def _has_place(text: str) -> bool:
    return "$near/" in text or "$area/" in text


class _Offers:
    """Events of one node, as far as they have to do with clients of another who want a place.

    Or with those of the same node, where an event is chosen for them by a contest of all nodes.

    Complexity: O(events · subscriptions with a place that fit their topics), but what is far from a
    client, as most is, costs some nanoseconds.
    """

    def __init__(
        self,
        events: SegmentEvents,
        chronicle: Chronicle,
        name: str,
        other: Chronicle,
        judge: ConditionJudge,
        allowance: Allowance,
    ) -> None:
        self._events = events
        self._other = other
        self._judge = judge
        self._allowance = allowance
        code = np.full(len(events), chronicle.code(PEER + name), dtype=np.int64)
        there, since_ms = chronicle.there(code, events.sequence)
        self._linked = there & (events.ms >= since_ms + allowance.settle_ms)
        self._leave = events.is_client & ~events.ordered
        if other is chronicle:  # from there only what a contest may bring back
            self._leave &= events.limited

    def find(self) -> pd.DataFrame:
        """Return a row for each event and client, if it is due or may be."""
        events, names = self._events, self._other.wishes.names
        rows = [
            (at, names[client], level)
            for at, wanted in groupby(self._candidates(), key=itemgetter(0))
            for client, level in self._clients(at, [wish for _, wish in wanted]).items()
        ]
        at = np.array([one[0] for one in rows], dtype=np.int64)
        level = np.array([one[2] for one in rows], dtype=np.int64)
        lifetimes = longs(events.table["lifetime_ms"].fill_null(FOREVER))
        is_sure = (level >= 0) & self._linked[at] & (lifetimes[at] >= _PURSUED_MS)
        return _rows_of(events, at).assign(
            side=np.where(events.limited[at], "open", np.where(is_sure, "due", "perhaps")),
            receiver=[one[1] for one in rows],
            level=np.maximum(level, 0),
        )

    def _candidates(self) -> list[tuple[int, int]]:
        """Return events with wishes that they may fit, by event: most are far away for certain."""
        events, other, settle = self._events, self._other, self._allowance.settle_ms
        found: list[tuple[int, int]] = []
        for number, topic in enumerate(events.topics):
            fitting = fitting_places(other, self._judge, topic)
            if not len(fitting):
                continue
            some = np.flatnonzero((events.topic == number) & self._leave)
            lons, lats = self._places(topic, some)
            for wish in fitting.tolist():
                since_ms, until_ms = other.wishes.since_ms[wish], other.wishes.until_ms[wish]
                ms = events.ms[some]
                meets = (ms >= since_ms - settle) & (ms - settle <= until_ms)
                meets &= ~self._is_far(wish, ms, lons, lats) | events.limited[some]
                found += [(at, wish) for at in some[meets].tolist()]
        return sorted(found)

    def _places(self, topic: str, some: Longs) -> tuple[Floats, Floats]:
        """Return where events were, NaN where that is no point."""
        places = np.full((len(some), 2), np.nan)
        for place, payload in enumerate(self._events.table["payload"].take(some).to_pylist()):
            position = self._judge.position(topic, payload)
            if position is not None:
                places[place] = position
        return places[:, 0], places[:, 1]

    def _is_far(self, wish: int, ms: Longs, lons: Floats, lats: Floats) -> Flags:
        """Tell which events a client was out of range of wherever it may have been."""
        wishes, skew = self._other.wishes, self._allowance.skew_ms
        near_m = self._judge.reach_m(wishes.texts[wishes.text[wish]])
        far = np.zeros(len(ms), np.bool_)
        if near_m is None:
            return far
        client = wishes.names[wishes.client[wish]]
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
        """Return who wants an event, and at which QoS; -1 where that is not certain."""
        wishes, ms, settle = self._other.wishes, int(self._events.ms[at]), self._allowance.settle_ms
        payload = self._events.table["payload"][at].as_py()
        found: dict[int, int] = {}
        for wish in wanted:
            verdict = PERHAPS if self._events.limited[at] else self._ask(at, payload, wish)
            if verdict == NO:
                continue
            lasts = wishes.since_ms[wish] + settle <= ms <= wishes.until_ms[wish] - settle
            level = int(min(self._events.qos[at], wishes.qos[wish]))
            client = int(wishes.client[wish])
            found[client] = max(found.get(client, -1), level if verdict == YES and lasts else -1)
        return found

    def _ask(self, at: int, payload: bytes, wish: int) -> int:
        """Ask at all places where the client may have been when the event was published."""
        events, wishes, skew = self._events, self._other.wishes, self._allowance.skew_ms
        text, topic = wishes.texts[wishes.text[wish]], events.topics[events.topic[at]]
        if "$near/" not in text:
            return self._judge.covers(topic, payload, text, None)
        ms, client = int(events.ms[at]), wishes.names[wishes.client[wish]]
        places = self._other.places(client, ms - skew, ms + skew)
        verdicts = {self._judge.covers(topic, payload, text, one) for one in places}
        return verdicts.pop() if len(verdicts) == 1 else PERHAPS


def _got(
    files: Segment, events: SegmentEvents, chronicle: Chronicle, judge: ConditionJudge
) -> pd.DataFrame:
    """Return what clients who want a place were handed of other nodes' events, or what was dropped.

    `own` tells those that a holder of places has found, from those that came to the node anyway.
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
        kept &= _wants(events, chronicle, judge, at, [names[code] for code in codes.tolist()])
        at, codes = at[kept], codes[kept]
        found = _rows_of(events, at).assign(
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
    chronicle: Chronicle,
    judge: ConditionJudge,
    at: Longs,
    receivers: list[str],
) -> Flags:
    """Tell of which events the receivers have ever wanted those of some place."""
    wishes = chronicle.wishes
    wanting = [
        {
            wishes.names[client]
            for client in wishes.client[fitting_places(chronicle, judge, topic)].tolist()
        }
        for topic in events.topics
    ]
    topics = events.topic[at].tolist()
    return np.array(
        [name in wanting[topic] for name, topic in zip(receivers, topics, strict=True)], np.bool_
    )


# --- both ends together ------------------------------------------------------------------------


def judge_places(
    rows: pd.DataFrame, nodes: Mapping[str, NodeFacts], allowance: Allowance
) -> list[dict[str, Any]]:
    """Return faults and rows of kind `unknown`; all rows are about clients of one node.

    Lost is only what was due at QoS 1 or 2. Of copies that are alike the last ones count as wrong.
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
    """Return how many of the chosen rows each key has."""
    return np.bincount(key[chosen], minlength=len(key)).astype(np.int64)


def _last(key: Longs, chosen: Flags, counts: Longs) -> Flags:
    """Tell which of the chosen rows are the last ones of their key, as many as it counts."""
    at = np.flatnonzero(chosen)
    order = at[np.argsort(key[at], kind="stable")]
    keys = key[order]
    from_end = np.searchsorted(keys, keys, "right") - 1 - np.arange(len(keys))
    found = np.zeros(len(key), np.bool_)
    found[order[from_end < counts[keys]]] = True
    return found


def _is_blind(rows: pd.DataFrame, column: str, blind: dict[str, list[Span]]) -> Flags:
    """Tell for which rows the log of a node may miss something."""
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
