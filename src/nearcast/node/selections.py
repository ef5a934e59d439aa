"""Selective subscriptions of all sessions: the matcher, and who stands behind its keys.

This is where NumPy and Numba come in: a node without spaces makes none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.node.crossing import Crossing
from nearcast.node.session import Session, Subscription
from nearcast.node.spaces import SpaceTable
from nearcast.node.values import EventReader, Position

if TYPE_CHECKING:
    from nearcast.matching import Matcher

GroupKey = tuple[str, str]  # group, topic filter

_Turns = tuple[int, int]
"""When somebody's last turn was over; below 0, how often it was served since: it goes first."""
_NEVER: _Turns = (0, 0)


class Selections:
    """What a node knows about selective subscriptions.

    Contract: a call that raises has changed nothing. Complexity: as `Matcher`.
    """

    def __init__(self, spaces: SpaceTable) -> None:
        from nearcast.matching import Matcher

        self.spaces = spaces
        self.matcher: Matcher = Matcher([one.space for one in spaces.all])
        self.readers = {one.space.name: EventReader(one) for one in spaces.all}
        self.by_number: dict[int, Subscription] = {}
        self.plain_owners: dict[int, Session] = {}  # of those who get messages as they are
        self.crossing = Crossing(spaces)
        self.explaining = 0  # how many want to be told why
        self._on_filter: dict[tuple[int, str, str], dict[str, Subscription]] = {}
        self._served: dict[GroupKey, dict[str, _Turns]] = {}
        self._sizes: dict[GroupKey, int] = {}
        self._turn = 0

    # --- changes --------------------------------------------------------------------------

    def add(self, one: Subscription) -> None:
        """Let a selective subscription take effect; `remove` the one it replaces afterwards."""
        session = one.session
        assert one.selection is not None
        self.matcher.add(one.number, one.selection, weight=one.weight, position=session.position)
        self.by_number[one.number] = one
        if one.is_plain and not one.group:
            self.plain_owners[one.number] = session
        self._on_filter.setdefault(_place(one), {})[one.text] = one
        self.explaining += one.explain
        if one.selection.near_m is not None:
            session.followers[one.number] = one
        if one.group and not session.is_peer:
            key = (one.group, one.topic_filter)
            self._sizes[key] = self._sizes.get(key, 0) + 1

    def check(self, one: Subscription) -> None:
        """Raise MisuseError if a selective subscription could not be added; O(its boxes)."""
        from nearcast.matching.placing import spaces_for

        assert one.selection is not None
        for space in spaces_for(one.selection, [each.space for each in self.spaces.all]):
            one.selection.boxes(space, one.session.position)

    def remove(self, one: Subscription) -> None:
        """Let a selective subscription end."""
        self.matcher.remove(one.number)
        del self.by_number[one.number]
        self.plain_owners.pop(one.number, None)
        place = _place(one)
        on_filter = self._on_filter[place]
        if on_filter[one.text] is one:
            del on_filter[one.text]
        if not on_filter:
            del self._on_filter[place]
        self.explaining -= one.explain
        one.session.followers.pop(one.number, None)
        if one.group and not one.session.is_peer:
            self._leave_group((one.group, one.topic_filter))

    def _leave_group(self, key: GroupKey) -> None:
        self._sizes[key] -= 1
        if not self._sizes[key]:
            del self._sizes[key]
            self._served.pop(key, None)

    def move(self, session: Session, position: Position | None) -> None:
        """Let all `$near` subscriptions of a client follow it."""
        session.position = position
        move = self.matcher.move
        for number in session.followers:
            move(number, position)

    # --- questions ------------------------------------------------------------------------

    def on_filter(self, session: Session, group: str, topic_filter: str) -> list[Subscription]:
        """Return a session's selective subscriptions on one bare filter."""
        return list(self._on_filter.get((session.number, group, topic_filter), {}).values())

    @property
    def has_groups(self) -> bool:
        """Whether any share group has members here that select less than its filter."""
        return bool(self._sizes)

    def has_members(self, key: GroupKey) -> bool:
        """Say whether a share group has members here that select less than its filter."""
        return key in self._sizes

    def pick(self, key: GroupKey, members: list[Subscription], qos: int) -> Subscription | None:
        """Return whose turn it is among the members of a share group who want a message.

        Someone connected and reading, else someone who has a queue; of those, who was served
        longest ago, another node as often on end as members are connected there. O(members).
        """
        ready = [one for one in members if one.is_ready]
        ready = ready or [one for one in members if min(qos, one.qos) and not one.session.is_over]
        if not ready:
            return None
        served = self._served.setdefault(key, {})
        chosen = min(ready, key=lambda one: (served.get(one.session.client_id, _NEVER), one.number))
        name = chosen.session.client_id
        self._turn += 1
        last, more = served.get(name, _NEVER)
        is_over = chosen.members <= 1 - more
        served[name] = (self._turn, 0) if is_over else (last, more - 1)
        return chosen


def _place(one: Subscription) -> tuple[int, str, str]:
    return one.session.number, one.group, one.topic_filter
