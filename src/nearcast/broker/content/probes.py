"""How often one publisher may ask about one place, in spaces with private positions.

A ranked publication (`$top`) and a question (`$reply`) tell a little about who is where: a client
that both publishes and subscribes sees that another one was preferred. A plain event tells by how
long the broker works, at most. Each publisher has a token bucket for each cell of a grid, one for
questions and one for plain events; what is about larger areas shares one.

Read next: `../../model/grid.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.broker.session.session import Session
from nearcast.broker.settings import BrokerSettings
from nearcast.broker.state import BrokerState
from nearcast.model import Event
from nearcast.model.grid import Place, coarse_place

CELL_M = 1_000.0
POSITIONS_RIGHT = "$nearcast/explain/positions"
"""Whoever the rules let publish to this topic may learn private positions."""
_TOO_OFTEN = (
    "this place was {} too often in a space with private positions; try again later ({} in the "
    "broker's configuration)"
)
ASKED_TOO_OFTEN = _TOO_OFTEN.format("asked about", "position.probes")
PUBLISHED_TOO_OFTEN = _TOO_OFTEN.format("published about", "position.publications")
_WIDE = (0.0, 360.0)  # no place has this latitude
_MINUTE_MS = 60_000
_MOST_BUCKETS = 20_000

_Key = tuple[str, Place]
_Rate = Callable[[BrokerSettings], int]


def sees_positions(state: BrokerState, session: Session | None) -> bool:
    """Return whether the rules let a client learn private positions; without rules nobody may."""
    access = state.access
    return (
        session is not None
        and access.has_rules()
        and access.may_publish(session.user_name, session.client_id, POSITIONS_RIGHT)
    )


class ProbeLimit:
    """Token buckets by publisher and place. O(1), amortised; bounded memory.

    `per_minute` returns the rate that the settings allow, 0 for any.
    """

    def __init__(self, state: BrokerState, per_minute: _Rate) -> None:
        self._state = state
        self._per_minute = per_minute
        self._buckets: dict[_Key, tuple[float, int]] = {}  # tokens left, and when

    def allows(self, session: Session, event: Event | None) -> bool:
        """Return whether a client may ask or publish about the place of an event once more."""
        most = self._per_minute(self._state.settings)
        if not most or event is None or sees_positions(self._state, session):
            return True
        now_ms, key = self._state.now_ms, (_asker(session), _cell(event))
        tokens, since_ms = self._buckets.get(key, (float(most), now_ms))
        tokens = min(float(most), tokens + (now_ms - since_ms) * most / _MINUTE_MS)
        is_allowed = tokens >= 1
        self._buckets.pop(key, None)
        self._buckets[key] = (tokens - is_allowed, now_ms)
        if len(self._buckets) > _MOST_BUCKETS:
            self._forget(now_ms)
        return is_allowed

    def _forget(self, now_ms: int) -> None:
        """Forget the buckets that are full again, and the least recent ones beyond the half."""
        recent = [one for one in self._buckets.items() if one[1][1] > now_ms - _MINUTE_MS]
        self._buckets = dict(recent[-_MOST_BUCKETS // 2 :])


def _asker(session: Session) -> str:
    """Return who asks: a user under all its identifiers, else the client's address.

    Wills without a user share their limits, whichever identifiers their clients had.
    """
    if session.user_name is not None:
        return f"user {session.user_name}"
    if session.link is None:
        return "will"
    host = session.link.address.rpartition(":")[0]
    return f"from {host}" if host else f"client {session.client_id}"


def _cell(event: Event) -> Place:
    """Return the cell of an event; `_WIDE` if it is not about one place."""
    if event.area is None:
        return _WIDE if event.position is None else coarse_place(event.position, CELL_M)
    corners = {
        coarse_place(corner, CELL_M)
        for west, south, east, north in event.area.bounds()
        for corner in ((west, south), (east, north))
    }
    return corners.pop() if len(corners) == 1 else _WIDE
