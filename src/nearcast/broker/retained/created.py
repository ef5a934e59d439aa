"""When a message was made: a user property that its publisher sets, `$created` by default.

Its value is a Unix time in seconds, such as `1763460000.25`. A value that is no number, lies before
2000 (a clock that was never set) or in the future is not used: the age then counts from the arrival
at the node, and the publisher gets the reason.
"""

from __future__ import annotations

import math
from functools import lru_cache

from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import reread_properties
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.quantities import as_number
from nearcast.model.wording import shown

AHEAD_S = 2.0  # clocks differ: a message from so little in the future has just been made
_FIRST_S = 946_684_800.0  # 2000-01-01
_EXPECTED = "a Unix time in seconds, since 2000 and not in the future"


@lru_cache(maxsize=4096)
def _stated_s(properties: bytes, name: str) -> float | None:
    """Return the creation time that the encoded properties state; None if they state none."""
    given = [value for key, value in reread_properties(properties).user if key == name]
    if not given:
        return None
    if len(given) > 1:
        raise MisuseError(f"{len(given)} values", where=name, expected="one value")
    try:
        found = as_number(given[0])
    except MisuseError:
        raise MisuseError(shown(given[0]), where=name, expected=_EXPECTED) from None
    if not _FIRST_S <= found < math.inf:
        raise OutOfRangeError(shown(given[0]), where=name, expected=_EXPECTED)
    return found


def created_s(message: Message, name: str, now_s: float) -> float | None:
    """Return when a message was made, None if it does not state that; raises MisuseError.

    O(1) for a message without the property, and for one that was asked about lately.
    """
    properties = message.head.properties
    if name.encode() not in properties:
        return None
    found = _stated_s(properties, name)
    if found is not None and found > now_s + AHEAD_S:
        todo = "Is it in milliseconds?" if found / 1000 <= now_s + AHEAD_S else ""
        raise OutOfRangeError(
            f"{found:.15g}, {found - now_s:.3g} s in the future",
            where=name,
            expected=_EXPECTED,
            todo=todo,
        )
    return found


def age_s(message: Message, name: str, arrived_s: float, now_s: float) -> float:
    """Return a message's age: from its creation time where that is plausible, else its arrival.

    `arrived_s` is -inf where the arrival is not known, after a restart. A message cannot be younger
    than its arrival.
    """
    try:
        made_s = created_s(message, name, now_s)
    except MisuseError:
        made_s = None
    if made_s is None:
        return now_s - arrived_s
    if arrived_s > -math.inf:
        made_s = min(made_s, arrived_s)
    return max(0.0, now_s - made_s)
