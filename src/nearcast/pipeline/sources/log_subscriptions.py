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
from nearcast.eventlog.log_files import PEER, Segment, table_parts
from nearcast.eventlog.segments import open_segments
from nearcast.index.topic_filters import filters_overlap
from nearcast.matching import Matcher
from nearcast.model import FileFormatError, NearcastError, Space
from nearcast.model.requests import parse_identity
from nearcast.pipeline.sources.event_logs import SEQUENCE_BITS, node_numbers

_TABLES = ("subscriptions", "presence")  # `presence` records the starts of nodes
_NEEDED = ("node", "sequence", "t", "client", "filter", "added", "there")

Key = tuple[str, str, str]  # node, client, filter


def log_version(log: Path) -> str:
    """Return the newest finished segment of every node, for the tables of subscriptions."""
    done = {_key(part) for table in _TABLES for part in table_parts(log, table)}
    # Listed after the parts: a segment that is still open here may lack some of its parts.
    done -= {_key(file) for file in open_segments(log)}
    return " ".join(f"{node}-{number}" for node, number in dict(sorted(done)).items())


def matcher_of_log(log: Path, version: str, space: Space) -> Matcher:
    """Return a matcher of the subscriptions that overlap a space, added oldest first."""
    matcher = Matcher([space])
    numbers = node_numbers(str(log))
    for (node, _, text), row in sorted(
        alive(log, version).items(), key=lambda each: (each[1]["t"], each[0])
    ):
        subscription = parse_identity(text)
        overlaps = filters_overlap(subscription.topic_filter, space.topic_filter)
        if subscription.near_m is not None or not overlaps:
            continue
        try:
            matcher.add(numbers[node] << SEQUENCE_BITS | row["sequence"], subscription)
        except NearcastError as error:
            error.where = f"subscription of {row['client']}: {text} {error.where}".rstrip()
            raise
    return matcher


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
        and not row["client"].startswith(PEER)
    }


def _rows(log: Path, table: str, version: str) -> Iterator[dict[str, Any]]:
    """Yield a table's rows up to a version, those of each node in order of sequence number."""
    newest = dict(each.rpartition("-")[::2] for each in version.split(" ") if each)
    columns = [name for name in LOG_TABLES[table].names if name in _NEEDED]
    for part in table_parts(log, table):
        node, number = _key(part)
        if number <= newest.get(node, ""):
            yield from _read(part, columns).sort_by("sequence").to_pylist()


def _read(part: Path, columns: list[str]) -> pa.Table:
    try:
        return pq.read_table(part, columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise FileFormatError(f"it cannot be read ({error})", where=str(part)) from None


def _key(file: Path) -> tuple[str, str]:
    segment = Segment.of(file)
    return segment.node, segment.number
