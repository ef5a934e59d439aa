"""Subscriptions as a broker's event log tells them: who wanted what when some segments were done.

A version names the newest finished segment of every node (`n1-00000007 n2-00000002`), and so a set
of files that stays the same. In it a subscription is there if the last word on it says so and its
node was not started again after that: a node that starts tells anew what it still has.

Its id is that of the record that added it: the node's number and the record's number. What follows
its owner (`$near`) is left out, since it depends on positions; so is what nodes ask of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import open_segments
from nearcast.index.topic_filters import filters_overlap
from nearcast.matching import Matcher
from nearcast.model import FileFormatError, NearcastError, Space, Subscription, split_prefixes
from nearcast.model.requests import SELECTING, decoded, read_subscription
from nearcast.pipeline.event_logs import SEQUENCE_BITS, node_numbers

_TABLES = ("subscriptions", "presence")  # the latter knows when nodes were started
_SHARE = "$share/"
_PEER = "$node/"
_NEEDED = ("node", "sequence", "t", "client", "filter", "added", "there")

Key = tuple[str, str, str]  # node, client, filter


def log_version(log: Path) -> str:
    """Return the newest finished segment of every node, as far as subscriptions go."""
    done = [_segment_of(part) for table in _TABLES for part in _parts(log, table)]
    # Looked for after the parts: of a segment that is still here, some parts may not be.
    unfinished = {path.stem.removeprefix("open-") for path in open_segments(log)}
    newest = {node: number for node, number in sorted(done) if f"{node}-{number}" not in unfinished}
    return " ".join(f"{node}-{number}" for node, number in newest.items())


def matcher_of_log(log: Path, version: str, space: Space) -> Matcher:
    """Return a matcher of the subscriptions that concern a space, the oldest first."""
    matcher = Matcher([space])
    numbers = node_numbers(str(log))
    for (node, _, text), row in sorted(
        alive(log, version).items(), key=lambda each: (each[1]["t"], each[0])
    ):
        wish = wish_of(text)
        if wish.near_m is None and filters_overlap(wish.topic_filter, space.topic_filter):
            key = numbers[node] << SEQUENCE_BITS | row["sequence"]
            _add(matcher, key, wish, f"{row['client']}: {text}")
    return matcher


def _add(matcher: Matcher, key: int, wish: Subscription, where: str) -> None:
    try:
        matcher.add(key, wish)
    except NearcastError as error:
        error.where = f"subscription of {where} {error.where}".rstrip()
        raise


def alive(log: Path, version: str) -> dict[Key, dict[str, Any]]:
    """Return the records of the subscriptions that are there in a version."""
    started = {
        row["node"]: row["sequence"]
        for row in _rows(log, "presence", version)
        if row["client"] == "" and row["there"]
    }
    last: dict[Key, dict[str, Any]] = {}
    for row in _rows(log, "subscriptions", version):
        last[row["node"], row["client"], row["filter"]] = row
    return {
        key: row
        for key, row in last.items()
        if row["added"]
        and row["sequence"] > started.get(row["node"], -1)
        and not row["client"].startswith(_PEER)
    }


def wish_of(text: str) -> Subscription:
    """Read a subscription as the log has it: share group, prefixes, filter.

    >>> wish_of("$share/g/$where/price%20<%205/shops/#").topic_filter
    'shops/#'
    """
    if text.startswith(_SHARE):
        text = text.split("/", 2)[2]
    prefixes, bare = split_prefixes(text, SELECTING)
    return read_subscription(bare, decoded(prefixes)).subscription


def _rows(log: Path, table: str, version: str) -> Iterator[dict[str, Any]]:
    """Yield a table's rows up to a version, each node's in the order of their numbers."""
    newest = dict(each.rpartition("-")[::2] for each in version.split(" ") if each)
    columns = [name for name in LOG_TABLES[table].names if name in _NEEDED]
    for part in _parts(log, table):
        node, number = _segment_of(part)
        if number <= newest.get(node, ""):
            yield from _read(part, columns).sort_by("sequence").to_pylist()


def _read(part: Path, columns: list[str]) -> pa.Table:
    try:
        return pq.read_table(part, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise FileFormatError(f"it cannot be read ({error})", where=str(part)) from None


def _parts(log: Path, table: str) -> list[Path]:
    return sorted((log / table).glob("part-*.parquet"))


def _segment_of(part: Path) -> tuple[str, str]:
    node, _, number = part.stem.removeprefix("part-").rpartition("-")
    return node, number
