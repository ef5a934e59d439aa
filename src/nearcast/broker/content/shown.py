"""`$near` subscriptions whose clients let publishers learn of them, at coarse places.

In a space with private positions `$reply` is answered from here: matching and ranking are exact
against the coarse place, so that no number of questions tells more than the cell of the grid.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.broker.content.spaces import SpaceSettings
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.model.grid import Place, coarse_place


class ShownSubscriptions:
    """The subscriptions with `$distance`, by number, in a matcher of their own.

    Complexity: as `Matcher`, and only for those.
    """

    def __init__(self, spaces: Iterable[SpaceSettings]) -> None:
        from nearcast.matching import Matcher

        self.matcher: Matcher = Matcher([one.space for one in spaces])
        self.by_number: dict[int, SessionSubscription] = {}

    def add(self, one: SessionSubscription) -> None:
        """Add a subscription, if its client has agreed."""
        if one.is_shown and one.selection is not None:
            place = _shown_place(one, one.session.position)
            self.matcher.add(one.number, one.selection, weight=one.weight, position=place)
            self.by_number[one.number] = one

    def remove(self, one: SessionSubscription) -> None:
        """Remove a subscription, if it is here."""
        if self.by_number.pop(one.number, None) is not None:
            self.matcher.remove(one.number)

    def move(self, session: Session, position: Place | None) -> None:
        """Move the subscriptions of a client."""
        if self.by_number:
            for number in session.moving.keys() & self.by_number.keys():
                self.matcher.move(number, _shown_place(self.by_number[number], position))


def _shown_place(one: SessionSubscription, position: Place | None) -> Place | None:
    assert one.shares_m is not None
    return None if position is None else coarse_place(position, one.shares_m)
