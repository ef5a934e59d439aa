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

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from nearcast.pipeline.audit_deliveries import SegmentEvents, codes_of, longs
from nearcast.pipeline.audit_hops import NEAR_A_GAP, Allowance, blind_spans, content_of, in_spans
from nearcast.pipeline.audit_logs import FOREVER, NodeFacts, Segment, Span, read_part, records_of
from nearcast.pipeline.audit_selections import NO, PERHAPS, YES, ConditionJudge
from nearcast.pipeline.audit_wishes import PEER, Chronicle, Flags, Longs

UNSURE = "where a client was when another node's event came, by two clocks"
_PURSUED_MS = 60_000  # an event with a place is offered to other nodes for so long
_KEYS = ["receiver", "content"]
_SIDES = ("due", "perhaps", "got", "dropped")


def places_of(
    files: Segment,
    events: SegmentEvents,
    chronicle: Chronicle,
    others: Mapping[str, Chronicle],
    judge: ConditionJudge,
    allowance: Allowance,
) -> pd.DataFrame:
    """Return what a segment's events mean to clients of other nodes, and what came from others.

    `side` is due or perhaps (an event of this node, for a client of `target`), got or dropped (at
    this node, by a client of it).
    """
    parts = [_got(files, events, chronicle, judge)]
    for name, other in others.items():
        if wanted := list(_Offers(events, chronicle, name, other, judge, allowance).find()):
            parts.append(pd.DataFrame(wanted).assign(node=files.node, target=name))
    return pd.concat([one for one in parts if len(one)] or parts[:1], ignore_index=True)


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

    Complexity: O(events · subscriptions with a place that fit their topics).
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

    def find(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each event and client, if it is due or may be."""
        events = self._events
        fitting = [fitting_places(self._other, self._judge, topic) for topic in events.topics]
        concerned = np.array([len(one) > 0 for one in fitting], dtype=np.bool_)
        if not len(events) or not concerned.any():
            return
        chosen = np.flatnonzero(concerned[events.topic] & events.is_client & ~events.ordered)
        lifetimes = longs(events.table["lifetime_ms"].fill_null(FOREVER))
        contents = content_of(events, chosen)
        for at, content in zip(chosen.tolist(), contents.tolist(), strict=True):
            payload = events.table["payload"][at].as_py()
            is_sure = bool(self._linked[at] and lifetimes[at] >= _PURSUED_MS)
            for client, level in self._clients(at, payload, fitting[events.topic[at]]).items():
                yield {
                    "side": "due" if is_sure and level >= 0 else "perhaps",
                    "receiver": self._other.wishes.names[client],
                    "content": content,
                    "level": max(level, 0),
                    "sequence": int(events.sequence[at]),
                    "ms": int(events.ms[at]),
                    "topic": events.topics[events.topic[at]],
                    "publisher": events.publishers[events.publisher[at]],
                }

    def _clients(self, at: int, payload: bytes, fitting: Longs) -> dict[int, int]:
        """Return who wants an event, and at which QoS; -1 where that is not certain."""
        wishes, ms, settle = self._other.wishes, int(self._events.ms[at]), self._allowance.settle_ms
        found: dict[int, int] = {}
        for wish in fitting.tolist():
            since_ms, until_ms = int(wishes.since_ms[wish]), int(wishes.until_ms[wish])
            if not since_ms - settle <= ms <= until_ms + settle:
                continue
            verdict = PERHAPS if self._events.limited[at] else self._ask(at, payload, wish)
            if verdict == NO:
                continue
            lasts = since_ms + settle <= ms <= until_ms - settle
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
        publishers = np.array(events.publishers, dtype=object)[events.publisher[at]]
        parts.append(
            pd.DataFrame(
                {
                    "side": side,
                    "node": files.node,
                    "target": files.node,
                    "receiver": np.array(names, dtype=object)[codes],
                    "content": content_of(events, at),
                    "level": events.qos[at],
                    "sequence": events.sequence[at],
                    "ms": events.ms[at],
                    "topic": np.array(events.topics, dtype=object)[events.topic[at]],
                    "publisher": publishers,
                    "own": events.is_chosen[at] & (publishers == ""),
                }
            )
        )
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

    Lost is only what was due at QoS 1 or 2.
    """
    blind = blind_spans(nodes, allowance)
    anywhere = [
        (start, min(end, FOREVER - _PURSUED_MS) + _PURSUED_MS)
        for spans in blind.values()
        for start, end in spans
    ]
    key = np.asarray(rows.groupby(_KEYS, sort=False).ngroup(), dtype=np.int64)
    count = {side: _counted(key, rows["side"] == side) for side in _SIDES}
    chosen = _counted(key, (rows["side"] == "got") & _is_chosen(rows))
    offered = count["due"] + count["perhaps"]
    strange = (offered > count["got"] + count["dropped"]) | (chosen > offered)
    found: list[dict[str, Any]] = []
    for _, alike in rows[strange[key]].groupby(_KEYS, sort=False):
        found += _judge_alike(alike, blind, anywhere)
    return found


def _counted(key: Longs, chosen: pd.Series) -> Longs:
    return np.bincount(key[chosen.to_numpy(np.bool_)], minlength=int(key.max(initial=-1)) + 1)


def _is_chosen(rows: pd.DataFrame) -> pd.Series:
    return rows["own"].astype("boolean").fillna(value=False).astype(bool)


def _judge_alike(
    rows: pd.DataFrame, blind: dict[str, list[Span]], anywhere: list[Span]
) -> Iterator[dict[str, Any]]:
    """Judge all copies of one content that one client was due, or got."""
    due, perhaps = rows[rows["side"] == "due"], rows[rows["side"] == "perhaps"]
    got, dropped = rows[rows["side"] == "got"], rows[rows["side"] == "dropped"]
    missing = len(due) - len(got) - len(dropped)
    lost = due[due["level"] > 0].tail(max(missing, 0))
    for one in records_of(lost):
        spans = [*blind.get(one["node"], []), *blind.get(one["target"], [])]
        is_unsure = in_spans(np.array([one["ms"]]), spans)[0]
        why = f"a client of node {one['target']} was in range, and was not handed it"
        yield _row(one, *(("unknown", NEAR_A_GAP) if is_unsure else ("lost", why)))
    for one in records_of(perhaps.tail(max(missing + len(perhaps), 0))):
        yield _row(one, "unknown", UNSURE)
    chosen = got[_is_chosen(got)]
    for one in records_of(chosen.tail(max(len(chosen) - len(due) - len(perhaps), 0))):
        kind, why = "doubled", "handed over more often than it was published in range"
        if not len(due) + len(perhaps):
            kind, why = "unasked", "no node has published it in range of the client"
        is_unsure = in_spans(np.array([one["ms"]]), anywhere)[0]
        yield _row(one, *(("unknown", NEAR_A_GAP) if is_unsure else (kind, why)))


def _row(one: dict[str, Any], kind: str, why: str) -> dict[str, Any]:
    columns = ("node", "sequence", "ms", "topic", "publisher", "receiver")
    return {name: one[name] for name in columns} | {"kind": kind, "why": why}
