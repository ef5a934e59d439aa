"""One answer of a broker with several workers: how the answers of each become that of all.

An endpoint without a function here is answered by the worker that serves the page. `Asker` asks any
worker, this one included; those that are just being started again are left out. Of some endpoints
(`spans_nodes`) the answers of the nodes of a network are joined in the same way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from nearcast.server.http.endpoint import Call

_WORKER_BITS = 40
"""A cursor has the number of a worker above these bits, and a cursor of that worker in them."""


class Asker(Protocol):
    """Asks the workers of this broker the same as was asked here."""

    count: int

    async def one(self, place: int, query: Any = None) -> Any:
        """Return the answer of a worker, to another query if one is given; None without one."""

    async def all(self, query: Any = None) -> list[Any]:
        """Return the answers of all workers, the one that serves the page first."""


Gather = Callable[["Call", Asker], Awaitable[Any]]


def merged(**how: Callable[[list[Any]], Any]) -> Gather:
    """Return a gatherer for the named fields; the others are those of the first answer."""

    async def gather(_call: Call, ask: Asker) -> Any:
        found = await ask.all()
        fields = {
            name: combine([getattr(one, name) for one in found]) for name, combine in how.items()
        }
        return msgspec.structs.replace(found[0], **fields)

    return gather


def joined(lists: list[list[Any]]) -> list[Any]:
    """Return all rows, one worker's behind the other's."""
    return [row for rows in lists for row in rows]


def added(values: list[Any]) -> Any:
    """Return the sum of numbers, or of each number of dictionaries; None counts as nothing."""
    if isinstance(values[0], dict):
        keys = dict.fromkeys(key for one in values for key in one)
        return {key: sum(one.get(key, 0) for one in values) for key in keys}
    found = [one for one in values if one is not None]
    return sum(found) if found else None


def worst(values: list[Any]) -> Any:
    """Return of each percentile the greatest one."""
    best = values[0]
    for one in values[1:]:
        p50, p99 = max(best.p50 or 0, one.p50 or 0), max(best.p99 or 0, one.p99 or 0)
        best = type(best)(p50 or None, p99 or None)
    return best


async def clients_of_all(call: Call, ask: Asker) -> Any:
    """Return clients by worker, and in the order of their sessions at each."""
    query = call.query
    place, cursor = query.cursor >> _WORKER_BITS, query.cursor & ((1 << _WORKER_BITS) - 1)
    few = await ask.all(msgspec.structs.replace(query, limit=1, cursor=0))
    rows: list[Any] = []
    following = None
    while place < ask.count and following is None and len(rows) < query.limit:
        asked = msgspec.structs.replace(query, limit=query.limit - len(rows), cursor=cursor)
        page = await ask.one(place, asked)
        rows += [] if page is None else page.items
        if page is not None and page.next is not None:
            following = place << _WORKER_BITS | page.next
        else:
            place, cursor = place + 1, 0
            if len(rows) >= query.limit and place < ask.count:
                following = place << _WORKER_BITS
    return type(few[0])(rows, sum(one.total for one in few), following)


def rows_by(key: Callable[[Any], str], combine: Callable[[list[Any]], Any]) -> Gather:
    """Return a gatherer of pages in alphabetical order, whose rows of one key become one row."""

    async def gather(call: Call, ask: Asker) -> Any:
        pages = await ask.all()
        found: dict[str, list[Any]] = {}
        for page in pages:
            for row in page.items:
                found.setdefault(key(row), []).append(row)
        limit = call.query.limit
        shown = sorted(found)[:limit]
        is_over = len(found) <= limit and all(page.next is None for page in pages)
        is_whole = is_over and not call.query.cursor
        total = len(found) if is_whole else max(page.total for page in pages)
        rows = [combine(found[one]) for one in shown]
        return type(pages[0])(rows, total, None if is_over else shown[-1])

    return gather


async def log_of_all(call: Call, ask: Asker) -> Any:
    """Return the last lines of all workers by time; lines behind a number are those of one."""
    if call.query.after:
        return await ask.one(0)
    found = await ask.all()
    lines = sorted(joined([one.items for one in found]), key=lambda line: line.t)
    return msgspec.structs.replace(found[0], items=lines[-call.query.limit :])
