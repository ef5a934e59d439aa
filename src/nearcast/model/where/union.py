"""Compile an expression into a union of boxes.

1. `not` moves inwards to the conditions (De Morgan; exact in Kleene's logic, so a missing value
   stays unknown under it).
2. A condition, negated or not, is a *set of ranges* of one attribute. A conjunction is a
   *product*: a set of ranges for some attributes. Sets keep `kind != food and age not in (3, 4)`
   one product until the very end.
3. An Or is a list of products, without those that another one covers, and with those that differ
   in one attribute only merged into one. An And multiplies two such lists and simplifies again.
4. Each product is cut into boxes.

Every step is counted, so that an expression which would explode is refused after a bounded
amount of work (LimitError), however it is written.

A range runs between two *cuts* (value, side): side 0 is just below the value, side 1 just above
it. So open and closed ends are no special cases: `x < 25` ends at (25, 0), and its
complement starts there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product as choices
from typing import TypeAlias

from nearcast.model.attribute import Attribute
from nearcast.model.box import EVERYTHING, Box, Interval
from nearcast.model.errors import ExpressionError, LimitError, OutOfRangeError, UnknownNameError
from nearcast.model.where.expression import (
    And,
    Between,
    Compare,
    Condition,
    Expression,
    Item,
    Membership,
    Not,
    Or,
    ValueRange,
    position_of,
)
from nearcast.model.wording import did_you_mean, listed, shown

BOX_LIMIT = 64
"""The most boxes of an expression, unless the caller sets another limit."""

_ROOM = 4  # intermediate results may have this many times the limit
_STEPS_PER_BOX = 1_500

Cut: TypeAlias = tuple[float, int]
Ranges: TypeAlias = tuple[tuple[Cut, Cut], ...]  # sorted, disjoint, not touching
Product: TypeAlias = dict[int, Ranges]  # by the attribute's position in the space


def boxes_of(
    expression: Expression, attributes: Sequence[Attribute], limit: int = BOX_LIMIT
) -> tuple[Box, ...]:
    """Return boxes whose union is exactly where the expression is true, sorted.

    No box covers another. No box at all means that nothing can match. Raises LimitError if more
    than `limit` boxes are needed; the work is bounded by a multiple of `limit` and of the size.
    """
    work = _Work(limit)
    products = _Resolver(attributes, work).products(expression, negated=False)
    boxes = _cut_up(products, attributes, work)
    if len(boxes) > limit:
        raise work.too_many()
    return tuple(sorted(boxes, key=lambda box: (box.lows, box.highs)))


class _Work:
    """Counts steps, and raises when there are too many."""

    __slots__ = ("limit", "steps")

    def __init__(self, limit: int) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise OutOfRangeError(shown(limit), where="limit", expected="a whole number from 1")
        self.limit = limit
        self.steps = 0

    def charge(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _STEPS_PER_BOX * self.limit:
            raise self.too_many()

    def check_room(self, number: int) -> None:
        if number > _ROOM * self.limit:
            raise self.too_many()

    def too_many(self) -> LimitError:
        return LimitError(
            f"an expression of more than {self.limit} boxes",
            expected=f"at most {self.limit}",
            todo="Use fewer alternatives (or, !=, in) on different attributes, "
            "or several subscriptions.",
        )


class _Resolver:
    __slots__ = ("attributes", "places", "work")

    def __init__(self, attributes: Sequence[Attribute], work: _Work) -> None:
        self.attributes = attributes
        self.places = {attribute.name: place for place, attribute in enumerate(attributes)}
        self.work = work

    def products(self, expression: Expression, negated: bool) -> list[Product]:
        if isinstance(expression, Not):
            return self.products(expression.part, not negated)
        if isinstance(expression, (And, Or)):
            parts = [self.products(part, negated) for part in expression.parts]
            both = isinstance(expression, And) is not negated
            return _conjunction(parts, self.work) if both else _disjunction(parts, self.work)
        place = self._place(expression)
        whole = _whole(self.attributes[place])
        ranges = _merged(_condition_cuts(expression, self.attributes[place]), self.work)
        ranges = _within(_complement(ranges, whole) if negated else ranges, (whole,), self.work)
        return [{place: ranges}] if ranges else []

    def _place(self, condition: Condition) -> int:
        place = self.places.get(condition.name)
        if place is None:
            raise UnknownNameError(
                f"the attribute {shown(condition.name)}",
                where=f"position {position_of(condition)}",
                expected=f"one of {listed(self.places)}",
                todo=self._hint(condition),
            )
        return place

    def _hint(self, condition: Condition) -> str:
        value = getattr(condition, "value", None)
        if isinstance(value, str) and value in self.places:
            return f"Write the attribute first: {value} = {condition.name}."
        return did_you_mean(condition.name, self.places)


def _whole(attribute: Attribute) -> tuple[Cut, Cut]:
    # Categories are cut half-way between the codes, and never on a code.
    return (attribute.low, 0), (attribute.high, 0 if attribute.is_category else 1)


def _condition_cuts(condition: Condition, attribute: Attribute) -> list[tuple[Cut, Cut]]:
    if isinstance(condition, Membership):
        return [
            _item_cuts(item, attribute, condition, which)
            for which, item in enumerate(condition.items, start=1)
        ]
    if isinstance(condition, Between):
        ends = ValueRange(condition.low, condition.high)
        low, high = _item_cuts(ends, attribute, condition, 1)
        return [((low[0], int(condition.low_open)), (high[0], int(not condition.high_open)))]
    if condition.operator == "=":
        return [_item_cuts(condition.value, attribute, condition, 1)]
    return [_one_sided(condition, attribute)]


def _one_sided(condition: Compare, attribute: Attribute) -> tuple[Cut, Cut]:
    value = _encoded(condition.value, attribute, condition, 1)
    start, end = _whole(attribute)
    if condition.operator[0] == "<":
        return start, (value, int(condition.operator == "<="))
    return (value, int(condition.operator == ">")), end


def _item_cuts(
    item: Item, attribute: Attribute, condition: Condition, which: int
) -> tuple[Cut, Cut]:
    if isinstance(item, ValueRange):
        low = _encoded(item.low, attribute, condition, which)
        return (low, 0), (_encoded(item.high, attribute, condition, which + 1), 1)
    if isinstance(item, str):
        code = _category_code(item, attribute, condition, which)
        return (code - 0.5, 0), (code + 0.5, 0)
    value = _encoded(item, attribute, condition, which)
    return (value, 0), (value, 1)


def _encoded(value: object, attribute: Attribute, condition: Condition, which: int) -> float:
    """Return a number's coordinate, or raise if this attribute cannot be compared with it."""
    position = position_of(condition, which)
    if attribute.is_category:
        raise ExpressionError(
            f"a number beside the category attribute {attribute.name}",
            position=position,
            expected=f"= or in with one of {attribute.range_text}",
            todo="A category that looks like a number needs quotes.",
        )
    return attribute.encode(value, f"position {position}")


def _category_code(word: str, attribute: Attribute, condition: Condition, which: int) -> float:
    position = position_of(condition, which)
    if not attribute.is_category:
        raise ExpressionError(
            f"the word {shown(word)} beside the number {attribute.name}",
            position=position,
            expected=f"a number from {attribute.range_text}",
            todo="Numbers go without quotes, and an attribute is compared with a literal only.",
        )
    return attribute.encode(word, f"position {position}")


# Sets of ranges on one attribute.


def _merged(cuts: Iterable[tuple[Cut, Cut]], work: _Work) -> Ranges:
    """Return the union of ranges, sorted and with touching ones joined; O(n log n)."""
    merged: list[tuple[Cut, Cut]] = []
    for start, end in sorted(cuts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    work.charge(len(merged))
    return tuple(merged)


def _complement(ranges: Ranges, whole: tuple[Cut, Cut]) -> Ranges:
    cuts = [whole[0], *(cut for pair in ranges for cut in pair), whole[1]]
    return tuple(pair for pair in zip(cuts[::2], cuts[1::2], strict=True) if pair[0] < pair[1])


def _within(ours: Ranges, theirs: Ranges, work: _Work) -> Ranges:
    """Return the ranges that two sets share; O(n + m)."""
    work.charge(len(ours) + len(theirs))
    shared: list[tuple[Cut, Cut]] = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        start = max(ours[i][0], theirs[j][0])
        end = min(ours[i][1], theirs[j][1])
        if start < end:
            shared.append((start, end))
        if ours[i][1] <= theirs[j][1]:
            i += 1
        else:
            j += 1
    return tuple(shared)


# Lists of products.


def _conjunction(parts: list[list[Product]], work: _Work) -> list[Product]:
    """Return the products where all parts are true; short lists first, as they prune long ones."""
    result: list[Product] = [{}]
    for part in sorted(parts, key=len):
        result = _tidy((_both(p, q, work) for p in result for q in part), work)
    return result


def _both(ours: Product, theirs: Product, work: _Work) -> Product | None:
    work.charge(1)
    both = dict(ours)
    for place, ranges in theirs.items():
        shared = _within(both[place], ranges, work) if place in both else ranges
        if not shared:
            return None
        both[place] = shared
    return both


def _disjunction(parts: list[list[Product]], work: _Work) -> list[Product]:
    """Return the products where some part is true; alternatives on one attribute merge at once."""
    single: dict[int, list[tuple[Cut, Cut]]] = {}
    others: list[Product] = []
    for product in (product for part in parts for product in part):
        if len(product) == 1:
            ((place, ranges),) = product.items()
            single.setdefault(place, []).extend(ranges)
        else:
            others.append(product)
    merged: list[Product] = [{place: _merged(cuts, work)} for place, cuts in single.items()]
    return _tidy([*merged, *others], work)


def _tidy(products: Iterable[Product | None], work: _Work) -> list[Product]:
    """Return the products without those that others cover, and with neighbours merged."""
    tidy: list[Product] = []
    for product in products:
        if product is not None:
            _absorb(product, tidy, work)
            work.check_room(len(tidy))
    return tidy


def _absorb(product: Product, tidy: list[Product], work: _Work) -> None:
    """Add a product, and merge it with others until nothing merges any more."""
    while True:
        partner = None
        for other in tidy:
            work.charge(1)
            if _covers(other, product, work):
                return
            if partner is None and _differing_place(other, product) is not None:
                partner = other
        if partner is None:
            break
        place = _differing_place(partner, product)
        assert place is not None
        tidy.remove(partner)
        product = {**product, place: _merged(product[place] + partner[place], work)}
    tidy[:] = [other for other in tidy if not _covers(product, other, work)]
    tidy.append(product)


def _covers(outer: Product, inner: Product, work: _Work) -> bool:
    return all(
        place in inner and _within(inner[place], ranges, work) == inner[place]
        for place, ranges in outer.items()
    )


def _differing_place(ours: Product, theirs: Product) -> int | None:
    """Return the one attribute in which the two differ, if both constrain the same ones."""
    if ours.keys() != theirs.keys():
        return None
    places = [place for place in ours if ours[place] != theirs[place]]
    return places[0] if len(places) == 1 else None


# Products into boxes.


def _cut_up(products: list[Product], attributes: Sequence[Attribute], work: _Work) -> list[Box]:
    boxes: list[Box] = []
    for product in products:
        sides = [_sides(product.get(place), a) for place, a in enumerate(attributes)]
        work.check_room(len(boxes) + math.prod(map(len, sides)))
        boxes.extend(Box(choice) for choice in choices(*sides))
    return _uncovered(boxes)


def _sides(ranges: Ranges | None, attribute: Attribute) -> list[Interval]:
    if ranges is None:
        return [EVERYTHING]
    if attribute.is_category:
        return [Interval(low, high) for (low, _), (high, _) in ranges]
    return [
        Interval(low, high, bool(above), not below)
        for (low, above), (high, below) in ranges
        if _next(low, above) <= _previous(high, below)
    ]


def _next(low: float, above: int) -> float:
    return math.nextafter(low, math.inf) if above else low


def _previous(high: float, below: int) -> float:
    return high if below else math.nextafter(high, -math.inf)


def _uncovered(boxes: list[Box]) -> list[Box]:
    kept: list[Box] = []
    for box in boxes:
        if not any(other.covers(box) for other in kept):
            kept = [other for other in kept if not box.covers(other)]
            kept.append(box)
    return kept
