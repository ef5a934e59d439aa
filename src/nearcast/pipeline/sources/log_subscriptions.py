"""Subscriptions from a broker's event log: those in effect when given segments were finished.

A version names the newest finished segment of every node (`n1-00000007 n2-00000002`), and so a
fixed set of files. In a version a subscription exists if its last record says that it was added,
and its node has not been started since: a node that starts logs again all subscriptions that it
still has.

The id of a subscription is that of the record that added it: the node's number and the record's
sequence number. `$near` subscriptions are left out, since they depend on positions; so are the
subscriptions of peers.
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
from nearcast.pipeline.sources.event_logs import SEQUENCE_BITS, node_numbers

_TABLES = ("subscriptions", "presence")  # `presence` records the starts of nodes
_SHARE = "$share/"
_PEER = "$node/"
_NEEDED = ("node", "sequence", "t", "client", "filter", "added", "there")

Key = tuple[str, str, str]  # node, client, filter


def log_version(log: Path) -> str:
    """Return the newest finished segment of every node, for the tables of subscriptions."""
    done = [_segment_of(part) for table in _TABLES for part in _parts(log, table)]
    # Listed after the parts: a segment that is still open here may lack some of its parts.
    unfinished = {path.stem.removeprefix("open-") for path in open_segments(log)}
    newest = {node: number for node, number in sorted(done) if f"{node}-{number}" not in unfinished}
    return " ".join(f"{node}-{number}" for node, number in newest.items())


def matcher_of_log(log: Path, version: str, space: Space) -> Matcher:
    """Return a matcher of the subscriptions that overlap a space, added oldest first."""
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
    """Return the records of the subscriptions that exist in a version."""
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
    """Parse a subscription as the log has it: share group, prefixes, filter.

    >>> wish_of("$share/g/$where/price%20<%205/shops/#").topic_filter
    'shops/#'
    """
    if text.startswith(_SHARE):
        text = text.split("/", 2)[2]
    prefixes, bare = split_prefixes(text, SELECTING)
    return read_subscription(bare, decoded(prefixes)).subscription


def _rows(log: Path, table: str, version: str) -> Iterator[dict[str, Any]]:
    """Yield a table's rows up to a version, those of each node in order of sequence number."""
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
