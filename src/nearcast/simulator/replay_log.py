"""Reads event logs as a list of client actions to replay, for `whatif.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nearcast.eventlog.log_files import PEER, find_segments, finished, read_part
from nearcast.model import MisuseError

_COLUMNS = {
    "presence": ("sequence", "t", "client", "there"),
    "subscriptions": ("sequence", "t", "client", "filter", "qos", "added"),
    "positions": ("sequence", "t", "client", "lon", "lat"),
    "events": ("sequence", "t", "publisher", "topic", "qos", "retain", "payload", "way"),
}


@dataclass(frozen=True, slots=True)
class ClientAction:
    """One action of a client at a node."""

    ms: int
    node: str
    number: int
    kind: str  # connect, disconnect, subscribe, unsubscribe, move, publish
    client: str
    topic: str = ""
    qos: int = 0
    payload: bytes = b""
    retain: bool = False


@dataclass(frozen=True, slots=True)
class ReplayLog:
    """The first actions of a log, oldest first; `left_out` counts the actions after them."""

    nodes: tuple[str, ...]
    acts: tuple[ClientAction, ...]
    left_out: int = 0


def read_actions(paths: Sequence[str], most: int) -> ReplayLog:
    """Return the first `most` actions of clients in some logs; traffic between nodes is left out.

    Raises MisuseError where there is nothing to replay. Memory: O(actions in the logs).
    """
    segments = find_segments(paths)
    acts: list[ClientAction] = []
    for segment in segments:
        with finished(segment) as files:
            for table, columns in _COLUMNS.items():
                rows = read_part(files, table, columns)
                rows = rows.set_column(1, "ms", rows["t"].cast(pa.int64()))
                acts += filter(
                    None, (_action(segment.node, table, one) for one in rows.to_pylist())
                )
    acts.sort(key=lambda act: (act.ms, act.node, act.number))
    if not any(act.kind == "publish" for act in acts):
        raise MisuseError(
            "the log has no publications",
            where=", ".join(paths),
            expected="an event log with events",
            todo='Run a broker with [log] events = "full"',
        )
    names = tuple(sorted({segment.node for segment in segments}))
    return ReplayLog(names, tuple(acts[:most]), max(0, len(acts) - most))


def _action(node: str, table: str, row: dict[str, Any]) -> ClientAction | None:
    client = row["publisher"] if table == "events" else row["client"]
    if not client or client.startswith(PEER):
        return None
    at = (row["ms"], node, row["sequence"])
    if table == "presence":
        return ClientAction(*at, "connect" if row["there"] else "disconnect", client)
    if table == "subscriptions":
        kind = "subscribe" if row["added"] else "unsubscribe"
        return ClientAction(*at, kind, client, row["filter"], row["qos"])
    if table == "positions":
        place = f'{{"lon": {row["lon"]!r}, "lat": {row["lat"]!r}}}'
        return ClientAction(*at, "move", client, "$position", 0, place.encode())
    if row["way"] != "client":
        return None
    return ClientAction(
        *at, "publish", client, row["topic"], row["qos"], row["payload"], bool(row["retain"])
    )
