"""Aggregates the `$where` subscriptions of a node's clients into a few boxes for its peers.

Peers need not know each subscription, only where there is none: an event outside all boxes is not
forwarded. Boxes near each other are merged, up to a looseness (`overlay.Cover`). Each box is
announced in the form that a client would use, a filter with conditions
(`$where/price=10..20/shops/#`), and the peer treats it as a subscription of this node.

Read next: `subscription_gossip.py`, `nearcast/overlay/cover.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from nearcast.index.topic_filters import filters_overlap
from nearcast.model import Space
from nearcast.model import Subscription as Selection
from nearcast.model.attribute import Attribute
from nearcast.model.where.expression import And, Between, Condition, Expression, Membership

if TYPE_CHECKING:  # NumPy stays out of a node without spaces
    from nearcast.overlay import Cover
    from nearcast.overlay.bounds import Bounds
    from nearcast.overlay.density import Density

LOOSENESS = 0.25
"""How much larger than its subscriptions a box may be, by default."""

Changes = list[tuple[str, int]]


class FilterAggregation:
    """Boxes around content subscriptions without a place, per topic filter.

    A filter that overlaps several spaces is announced unchanged: a box belongs to one space.

    Complexity: as `Cover`, per box of a subscription.
    """

    def __init__(
        self,
        spaces: Iterable[Space],
        looseness: float = LOOSENESS,
        densities: Mapping[str, Density] | None = None,
    ) -> None:
        self._spaces = tuple(spaces)
        self._looseness = looseness
        self._densities = densities or {}
        self._covers: dict[str, tuple[Space, Cover]] = {}  # by topic filter
        self._unsettled: dict[str, None] = {}  # topic filters whose boxes are being rebuilt

    @property
    def is_settled(self) -> bool:
        """Whether `tidy` has nothing to do."""
        return not self._unsettled

    def came(self, selection: Selection) -> Changes:
        """Add a subscription; return the change of the count of each announced filter."""
        return self._changed(selection, 1)

    def went(self, selection: Selection) -> Changes:
        """Remove a subscription; return the change of the count of each announced filter."""
        return self._changed(selection, -1)

    def use_densities(self, densities: Mapping[str, Density]) -> None:
        """Merge boxes by other densities; `tidy` rebuilds those of spaces whose density is new."""
        before, self._densities = self._densities, dict(densities)
        for topic_filter, (space, cover) in self._covers.items():
            density = self._densities.get(space.name)
            if density is not before.get(space.name):
                cover.use_density(density)
                self._unsettled[topic_filter] = None

    def tidy(self) -> Changes:
        """Continue to rebuild boxes that have become too loose; return the changes."""
        return [change for text in list(self._unsettled) for change in self._tidied(text)]

    def _tidied(self, topic_filter: str) -> Changes:
        space, cover = self._covers[topic_filter]
        cover.tidy()
        return self._told(topic_filter, space, cover)

    def _changed(self, selection: Selection, step: int) -> Changes:
        topic_filter = selection.topic_filter
        space, cover = self._covers.get(topic_filter) or self._opened(topic_filter)
        if space is None or cover is None:
            return [(bare_of_wishes(selection).identity, step)]
        for box in selection.boxes(space):
            (cover.add if step > 0 else cover.remove)((box.lows, box.highs))
        return self._told(topic_filter, space, cover)

    def _told(self, topic_filter: str, space: Space, cover: Cover) -> Changes:
        """Return the changes of the announced filters, additions first."""
        if cover.is_settled:
            self._unsettled.pop(topic_filter, None)
        else:
            self._unsettled[topic_filter] = None
        if not len(cover):
            del self._covers[topic_filter]
        changes = sorted(cover.take_changes().items(), key=lambda change: -change[1])
        return [(box_filter(topic_filter, space, box), count) for box, count in changes]

    def _opened(self, topic_filter: str) -> tuple[Space | None, Cover | None]:
        """Start a cover for a filter, if it overlaps exactly one space."""
        met = [one for one in self._spaces if filters_overlap(topic_filter, one.topic_filter)]
        if len(met) != 1:
            return None, None
        from nearcast.overlay import Cover, Extent

        extent = Extent(met[0].extent.lows, met[0].extent.highs)
        density = self._densities.get(met[0].name)
        cover = Cover(extent, looseness=self._looseness, density=density)
        self._covers[topic_filter] = met[0], cover
        return met[0], cover


def bare_of_wishes(selection: Selection) -> Selection:
    """Return a selection without its instructions about retained messages."""
    return Selection(
        topic_filter=selection.topic_filter,
        where=selection.where,
        area=selection.area,
        near_m=selection.near_m,
    )


def box_filter(topic_filter: str, space: Space, box: Bounds) -> str:
    """Return a box as a filter with conditions; `Selection.boxes` makes the same box of it.

    >>> kind = Attribute.category("kind", ["food", "tools", "toys"])
    >>> price = Attribute.number("price", 0, 99)
    >>> shops = Space(name="shops", topic_filter="shops/#", attributes=(price, kind))
    >>> box_filter("shops/+", shops, ((10.0, 0.5), (20.0, 2.5)))
    '$where/price=10..20;kind%20in(tools,toys)/shops/+'
    """
    sides = zip(space.attributes, *box, strict=True)
    conditions = tuple(_condition(*side) for side in sides if side[1:] != (-inf, inf))
    where: Expression | None = None
    if conditions:
        where = conditions[0] if len(conditions) == 1 else And(conditions)
    return Selection(topic_filter=topic_filter, where=where).identity


def _condition(attribute: Attribute, low: float, high: float) -> Condition:
    if attribute.is_category:
        return Membership(attribute.name, attribute.categories[ceil(low) : floor(high) + 1])
    return Between(attribute.name, low, high)
