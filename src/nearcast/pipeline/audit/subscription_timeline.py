"""The subscriptions, presence and positions of a node's clients over the numbers of its log.

The shape of a filter says where its literal levels are (`a/+/c/#` is `L+L#`), its key which they
are. A topic has one key per shape, so finding the filters that match it is one look-up per shape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearcast.eventlog.log_files import PEER, Segment, finished, read_part
from nearcast.model import MisuseError, split_prefixes
from nearcast.model.requests import SELECTING
from nearcast.pipeline.audit.logs import FOREVER, NodeFacts

_SHARE = "$share/"
_BETWEEN = "\0"
_CLIENT_SHIFT = 41  # 2 · 10¹² sequence numbers per node
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


def shape_and_key(topic_filter: str) -> tuple[str, str]:
    r"""Return the shape of a filter (where its literal levels are) and its key (which they are).

    >>> shape_and_key("a/+/c/#")
    ('L+L#', 'a\x00c')
    """
    levels = topic_filter.split("/")
    shape = "".join(level if level in {"+", "#"} else "L" for level in levels)
    return shape, _BETWEEN.join(level for level in levels if level not in {"+", "#"})


def key_in_shape(topic: str, shape: str) -> str | None:
    r"""Return the key of the filters of this shape that match a topic; None if none can match.

    >>> key_in_shape("a/b/c", "L+L#")
    'a\x00c'
    """
    levels = topic.split("/")
    fixed = shape.removesuffix("#")
    fits = len(levels) >= len(fixed) if shape[-1] == "#" else len(levels) == len(fixed)
    if not fits or (topic[:1] == "$" and shape[0] != "L"):
        return None
    return _BETWEEN.join(level for level, sign in zip(levels, fixed, strict=False) if sign == "L")


def parts_of(text: str) -> tuple[str, str, bool]:
    """Return the share group, the bare filter, and whether it has conditions.

    >>> parts_of("$share/g/$near/500m/shops/#")
    ('g', 'shops/#', True)
    """
    group = ""
    if text.startswith(_SHARE):
        _, group, text = text.split("/", 2)
    try:
        prefixes, bare = split_prefixes(text, SELECTING)
    except MisuseError:
        return group, text, False
    return group, bare, bool(prefixes)


@dataclass(frozen=True, slots=True)
class TimedSubscriptions:
    """Subscriptions of one node as columns, each in effect from `since` until before `until`.

    `client` indexes `names`, `text` indexes `texts`; `group` is 0 for none, else the number of a
    share group. `selective` marks conditions, `peer` a subscription of another node.
    """

    names: list[str]
    texts: list[str]
    client: Longs
    text: Longs
    group: Longs
    qos: Longs
    no_local: Flags
    selective: Flags
    peer: Flags
    since: Longs
    until: Longs
    since_ms: Longs
    until_ms: Longs


class Track(NamedTuple):
    """The positions of a client: sequence numbers, times (ms) and coordinates."""

    numbers: list[int]
    instants: list[int]
    lons: list[float]
    lats: list[float]


class SubscriptionTimeline:
    """The subscriptions, connections and positions of clients at one node, by sequence number.

    Complexity: O(changes of subscriptions and presence) to build, in time and memory; `on_topic`
    O(shapes of filters) for a new topic, O(1) after that.
    """

    def __init__(self, segments: Sequence[Segment], facts: NodeFacts) -> None:
        changes, connects, steps = _read_changes(segments)
        self.facts = facts
        self.code_of: dict[str, int] = {}  # client → its number
        self.group_of: dict[tuple[str, str], int] = {}  # (share group, filter) → from 1
        self.subscriptions = self._subscriptions(_ended(changes, ["client", "filter"], facts))
        self._connected = _ended(connects, ["client"], facts)
        self._connect_key, self._connect_until, self._connect_ms = self._presence()
        self._places = steps.sort_values(["client", "sequence"], kind="stable")
        self._places_of = dict(self._places.groupby("client", sort=False).indices)
        self._tracks: dict[str, Track] = {}  # cache of `track`
        self._connects = {
            name: sorted(some) for name, some in self._connected.groupby("client")["ms"]
        }
        self._by_key: dict[tuple[str, str], list[int]] = {}  # (shape, key) → subscriptions
        for place, number in enumerate(self.subscriptions.text.tolist()):
            bare = parts_of(self.subscriptions.texts[number])[1]
            self._by_key.setdefault(shape_and_key(bare), []).append(place)
        self._shapes = sorted({shape for shape, _ in self._by_key})
        self._topics: dict[str, Longs] = {}  # cache of `on_topic`

    def code(self, client: str) -> int:
        """Return the number of a client; a new client gets the next number."""
        return self.code_of.setdefault(client, len(self.code_of))

    def _subscriptions(self, rows: pd.DataFrame) -> TimedSubscriptions:
        texts, text_names = pd.factorize(rows["filter"])
        clients = np.array([self.code(one) for one in rows["client"]], dtype=np.int64)
        told = [parts_of(one) for one in text_names]
        groups = [
            self.group_of.setdefault((group, bare), len(self.group_of) + 1) if group else 0
            for group, bare, _ in told
        ]
        return TimedSubscriptions(
            list(self.code_of),
            list(text_names),
            clients,
            texts.astype(np.int64),
            np.array(groups, dtype=np.int64)[texts] if len(texts) else _none(),
            rows["qos"].to_numpy(np.int64),
            rows["no_local"].to_numpy(np.bool_),
            np.array([one[2] for one in told], dtype=np.bool_)[texts]
            if len(texts)
            else _none().astype(np.bool_),
            rows["client"].str.startswith(PEER).to_numpy(np.bool_),
            rows["sequence"].to_numpy(np.int64),
            rows["until"].to_numpy(np.int64),
            rows["ms"].to_numpy(np.int64),
            rows["until_ms"].to_numpy(np.int64),
        )

    def _presence(self) -> tuple[Longs, Longs, Longs]:
        rows = self._connected
        codes = np.array([self.code(one) for one in rows["client"]], dtype=np.int64)
        keys = (codes << _CLIENT_SHIFT) | rows["sequence"].to_numpy(np.int64)
        order = np.argsort(keys, kind="stable")
        until, ms = rows["until"].to_numpy(np.int64), rows["ms"].to_numpy(np.int64)
        return keys[order], until[order], ms[order]

    def on_topic(self, topic: str) -> Longs:
        """Return the indexes of all subscriptions whose filter matches a topic."""
        found = self._topics.get(topic)
        if found is None:
            places: list[int] = []
            for shape in self._shapes:
                key = key_in_shape(topic, shape)
                if key is not None:
                    places += self._by_key.get((shape, key), ())
            found = self._topics[topic] = np.array(places, dtype=np.int64)
        return found

    def connected(self, clients: Longs, numbers: Longs) -> tuple[Flags, Longs]:
        """Return which clients were connected at these sequence numbers, and since when (ms)."""
        if not len(self._connect_key):
            return np.zeros(len(clients), np.bool_), np.zeros(len(clients), np.int64)
        at = np.searchsorted(self._connect_key, (clients << _CLIENT_SHIFT) | numbers, "right") - 1
        at = np.maximum(at, 0)
        same = (self._connect_key[at] >> _CLIENT_SHIFT) == clients
        began = (self._connect_key[at] & ((1 << _CLIENT_SHIFT) - 1)) <= numbers
        return same & began & (numbers < self._connect_until[at]), self._connect_ms[at]

    def place(self, client: str, number: int) -> tuple[float, float, bool] | None:
        """Return a client's last position before a number, and whether the broker may have lost it.

        It may have if the client has connected, or the node has started, since then.
        """
        numbers, _, lons, lats = self.track(client)
        at = bisect_left(numbers, number) - 1
        if at < 0:
            return None
        code = self.code(client) << _CLIENT_SHIFT
        low = np.searchsorted(self._connect_key, code | numbers[at], "right")
        high = np.searchsorted(self._connect_key, code | number, "right")
        started = any(numbers[at] < start < number for start, _ in self.facts.starts)
        return lons[at], lats[at], bool(high > low) or started

    def places(self, client: str, from_ms: int, until_ms: int) -> list[tuple[float, float, bool]]:
        """Return a client's positions in a span (ms), each with the flag of `place`."""
        first, last, is_sure = self.stays(client, np.array([from_ms]), np.array([until_ms]))
        if first[0] < 0:
            return []  # no position at the span's beginning
        track = self.track(client)
        return [
            (track.lons[at], track.lats[at], not is_sure[0]) for at in range(first[0], last[0] + 1)
        ]

    def stays(self, client: str, from_ms: Longs, until_ms: Longs) -> tuple[Longs, Longs, Flags]:
        """Return the first and last index of a client's positions that held in each span (ms).

        `first` is -1 where there was no position at the span's beginning. The last array is True
        where no position may have been forgotten because the client connected or the node started
        meanwhile.
        """
        instants = np.array(self.track(client).instants, dtype=np.int64)
        first = np.searchsorted(instants, from_ms, "right") - 1
        last = np.searchsorted(instants, until_ms, "right") - 1
        if not len(instants):
            return first, last, np.zeros(len(first), np.bool_)
        connects = np.sort([*self._connects.get(client, []), *(ms for _, ms in self.facts.starts)])
        before = np.searchsorted(connects, instants[np.maximum(first, 0)], "left")
        came = np.searchsorted(connects, until_ms, "right") > before
        return first, last, (first >= 0) & ~came

    def track(self, client: str) -> Track:
        """Return a client's positions by sequence number.

        Cached, since they are used repeatedly.
        """
        known = self._tracks.get(client)
        if known is None:
            rows = self._places.iloc[self._places_of.get(client, [])]
            numbers = rows["sequence"].to_numpy(np.int64).tolist()
            instants = rows["ms"].to_numpy(np.int64).tolist()
            known = Track(numbers, instants, rows["lon"].tolist(), rows["lat"].tolist())
            self._tracks[client] = known
        return known


def _none() -> Longs:
    return np.zeros(0, dtype=np.int64)


def _read_changes(
    segments: Sequence[Segment],
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    tables: dict[str, list[Any]] = {"subscriptions": [], "presence": [], "positions": []}
    for segment in segments:
        with finished(segment) as files:
            for name, parts in tables.items():
                table = read_part(files, name).to_pandas()
                if "t" in table:
                    table["ms"] = table["t"].astype("datetime64[ms, UTC]").astype("int64")
                parts.append(table.drop(columns=["t", "node"]).astype(_TEXTS.get(name, {})))
    joined = {name: _joined(parts) for name, parts in tables.items()}
    return joined["subscriptions"], joined["presence"], joined["positions"]


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    some = [part for part in parts if len(part)]
    return pd.concat(some, ignore_index=True) if some else parts[0]


_TEXTS = {
    "subscriptions": {"client": "object", "filter": "object"},
    "presence": {"client": "object"},
    "positions": {"client": "object"},
}


def _ended(changes: pd.DataFrame, keys: list[str], facts: NodeFacts) -> pd.DataFrame:
    """Add to each beginning its end: the next record of the same key, or the node's next start."""
    is_on = "added" if "added" in changes else "there"
    rows = changes[changes["client"] != ""].sort_values([*keys, "sequence"], kind="stable")
    following = rows.groupby(keys, sort=False)
    until = following["sequence"].shift(-1, fill_value=FOREVER).to_numpy(np.int64)
    until_ms = following["ms"].shift(-1, fill_value=FOREVER).to_numpy(np.int64)
    starts = np.array([*(at for at, _ in facts.starts), FOREVER], dtype=np.int64)
    starts_ms = np.array([*(ms for _, ms in facts.starts), FOREVER], dtype=np.int64)
    after = np.searchsorted(starts, rows["sequence"].to_numpy(np.int64), "right")
    after = np.minimum(after, len(starts) - 1)
    ended = rows.assign(
        until=np.minimum(until, starts[after]), until_ms=np.minimum(until_ms, starts_ms[after])
    )
    return ended[ended[is_on].to_numpy(np.bool_)]
