"""Content subscriptions of all sessions: the matcher, and the subscriptions behind its keys.

NumPy and Numba are first used here: a broker without spaces creates none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.broker.content.range_entry import RangeEntry
from nearcast.broker.content.spaces import SpaceTable
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.model.event_decoder import EventDecoder, Position

if TYPE_CHECKING:
    from nearcast.matching import Matcher

GroupKey = tuple[str, str]  # group, topic filter

_Turns = tuple[int, int]
"""A member's last turn in a share group, and minus how often it was served again since."""
_NEVER: _Turns = (0, 0)


class ContentSubscriptions:
    """The content subscriptions of a broker.

    Contract: a call that raises has changed nothing. Complexity: as `Matcher`.
    """

    def __init__(self, spaces: SpaceTable) -> None:
        from nearcast.matching import Matcher

        self.spaces = spaces
        self.matcher: Matcher = Matcher([one.space for one in spaces.all])
        self.readers = {
            one.space.name: EventDecoder(one.space, one.values, one.paths) for one in spaces.all
        }
        self.by_number: dict[int, SessionSubscription] = {}  # by the matcher's key
        self.plain_owners: dict[int, Session] = {}  # of those that get packets unchanged
        self.crossing = RangeEntry(spaces)
        self.explaining = 0  # how many subscriptions want explanations
        # (session number, group, filter) to the subscriptions there, by text.
        self._on_filter: dict[tuple[int, str, str], dict[str, SessionSubscription]] = {}
        self._served: dict[GroupKey, dict[str, _Turns]] = {}  # by client identifier
        self._sizes: dict[GroupKey, int] = {}  # members at this node, peers not counted
        self._turn = 0

    # --- changes --------------------------------------------------------------------------

    def add(self, one: SessionSubscription) -> None:
        """Put a content subscription into effect; `remove` the one it replaces afterwards."""
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

    def check(self, one: SessionSubscription) -> None:
        """Raise MisuseError if a content subscription could not be added; O(its boxes)."""
        from nearcast.matching.subscription_compiler import spaces_for

        assert one.selection is not None
        for space in spaces_for(one.selection, [each.space for each in self.spaces.all]):
            one.selection.boxes(space, one.session.position)

    def remove(self, one: SessionSubscription) -> None:
        """Remove a content subscription."""
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
        """Move all `$near` subscriptions of a client to its new position."""
        session.position = position
        move = self.matcher.move
        for number in session.followers:
            move(number, position)

    # --- questions ------------------------------------------------------------------------

    def on_filter(
        self, session: Session, group: str, topic_filter: str
    ) -> list[SessionSubscription]:
        """Return a session's content subscriptions on one bare filter."""
        return list(self._on_filter.get((session.number, group, topic_filter), {}).values())

    @property
    def has_groups(self) -> bool:
        """Whether any share group has members with conditions at this node."""
        return bool(self._sizes)

    def has_members(self, key: GroupKey) -> bool:
        """Return whether a share group has members with conditions at this node."""
        return key in self._sizes

    def pick(
        self, key: GroupKey, members: list[SessionSubscription], qos: int
    ) -> SessionSubscription | None:
        """Return the next of the matching members of a share group.

        One that is connected and reads, else one that can queue; of those the one served longest
        ago. A peer is served as often in a row as it has connected members. O(members).
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


def _place(one: SessionSubscription) -> tuple[int, str, str]:
    return one.session.number, one.group, one.topic_filter
