"""Content subscriptions of all sessions: the matcher, and the subscriptions behind its keys.

NumPy and Numba are first used here: a broker without spaces creates none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.broker.content.range_entry import RangeEntry
from nearcast.broker.content.shown import ShownSubscriptions
from nearcast.broker.content.spaces import SpaceTable
from nearcast.broker.publish.share_groups import ShareGroups
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.model.event_decoder import EventDecoder, Position

if TYPE_CHECKING:
    from nearcast.matching import Matcher


class ContentSubscriptions:
    """The content subscriptions of a broker.

    Contract: a call that raises has changed nothing. Complexity: as `Matcher`.
    """

    def __init__(self, spaces: SpaceTable, groups: ShareGroups) -> None:
        from nearcast.matching import Matcher

        self.spaces = spaces
        self.groups = groups
        self.matcher: Matcher = Matcher([one.space for one in spaces.all])
        self.readers = {
            one.space.name: EventDecoder(one.space, one.values, one.paths) for one in spaces.all
        }
        self.by_number: dict[int, SessionSubscription] = {}  # by the matcher's key
        # Receivers of a plain QoS 0 packet, by the matcher's key; a key that is not there needs a
        # look at the subscription. None: the subscriber gets a message from a peer another way.
        self.receivers: dict[int, Session] = {}
        self.arrival_receivers: dict[int, Session | None] = {}
        self.crossing = RangeEntry(spaces)
        self.explaining = 0  # how many subscriptions want explanations
        self.near = 0  # how many subscriptions of clients select by their position
        self.shown = ShownSubscriptions(spaces.all)
        # (session number, group, filter) to the subscriptions there, by text.
        self._on_filter: dict[tuple[int, str, str], dict[str, SessionSubscription]] = {}

    # --- changes --------------------------------------------------------------------------

    def add(self, one: SessionSubscription) -> None:
        """Put a content subscription into effect; `remove` the one it replaces afterwards."""
        session = one.session
        assert one.selection is not None
        self.matcher.add(one.number, one.selection, weight=one.weight, position=session.position)
        self.by_number[one.number] = one
        self._add_receiver(one)
        self._on_filter.setdefault(_place(one), {})[one.text] = one
        self.explaining += one.explain
        if one.selection.near_m is not None:
            session.moving[one.number] = one
            self.near += not session.is_peer
            self.shown.add(one)
        if one.group:
            self.groups.join(one)

    def _add_receiver(self, one: SessionSubscription) -> None:
        """Add it to the receivers of plain packets, if they go to it unchanged."""
        session = one.session
        is_unchanged = not (one.no_local or one.identifier or one.explain or one.group)
        if is_unchanged:
            self.receivers[one.number] = session
        if one.group or one.has_place or session.is_peer:
            self.arrival_receivers[one.number] = None
        elif is_unchanged:
            self.arrival_receivers[one.number] = session

    def check(self, subscription: SessionSubscription) -> None:
        """Raise MisuseError if a content subscription could not be added; O(its boxes)."""
        from nearcast.matching.subscription_compiler import spaces_for

        assert subscription.selection is not None
        for space in spaces_for(subscription.selection, [each.space for each in self.spaces.all]):
            subscription.selection.boxes(space, subscription.session.position)

    def remove(self, subscription: SessionSubscription) -> None:
        """Remove a content subscription."""
        self.matcher.remove(subscription.number)
        del self.by_number[subscription.number]
        self.receivers.pop(subscription.number, None)
        self.arrival_receivers.pop(subscription.number, None)
        place = _place(subscription)
        on_filter = self._on_filter[place]
        if on_filter[subscription.text] is subscription:
            del on_filter[subscription.text]
        if not on_filter:
            del self._on_filter[place]
        self.explaining -= subscription.explain
        if subscription.is_near:
            subscription.session.moving.pop(subscription.number, None)
            self.near -= not subscription.session.is_peer
            self.shown.remove(subscription)
        if subscription.group:
            self.groups.leave(subscription)

    def move(self, session: Session, position: Position | None) -> None:
        """Move all `$near` subscriptions of a client to its new position."""
        session.position = position
        move = self.matcher.move
        for number in session.moving:
            move(number, position)
        self.shown.move(session, position)

    # --- questions ------------------------------------------------------------------------

    def on_filter(
        self, session: Session, group: str, topic_filter: str
    ) -> list[SessionSubscription]:
        """Return a session's content subscriptions on one bare filter."""
        return list(self._on_filter.get((session.number, group, topic_filter), {}).values())


def _place(subscription: SessionSubscription) -> tuple[int, str, str]:
    return subscription.session.number, subscription.group, subscription.topic_filter
