"""The expression tree of a `where` text.

    Expression
    ├── Compare   price < 100        kind = "food"
    ├── Between   20 <= age < 25     (and its other spelling, age = 20..25)
    ├── Membership kind in ("food", "tools")   age in (1, 2, 20..25)
    ├── Not       not …              (`!=` and `not in` are a Not of the two above)
    ├── And       … and …            (`;` is another spelling)
    └── Or        … or …

Two texts that differ only in blanks, quotes, the case of keywords, `==` for `=`, the side on
which a literal is, or redundant parentheses give equal trees, and so the same canonical text,
which is part of a subscription's identity. Positions are kept for error messages and do
not count in comparisons. A tree is never nested deeper than NESTING_LIMIT, however it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from nearcast.model.errors import ExpressionError, LimitError, MisuseError, OutOfRangeError
from nearcast.model.quantities import as_number, number_text
from nearcast.model.where.names import checked_name, is_text
from nearcast.model.wording import shown

NESTING_LIMIT = 100
"""How deep parentheses and `not` may be nested."""

OPERATORS = ("<", "<=", ">", ">=", "=")

Literal: TypeAlias = "float | str"


@dataclass(frozen=True, slots=True)
class ValueRange:
    """A range with both ends, as an item of `in (…)`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _set_ends(self, False, False)


Item: TypeAlias = "float | str | ValueRange"


@dataclass(frozen=True, slots=True)
class Compare:
    """An attribute, one of < <= > >= =, and a number (for = also a word)."""

    name: str
    operator: str
    value: Literal
    positions: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_name(self.name, "an attribute in a condition")
        if self.operator not in OPERATORS:
            raise MisuseError(shown(self.operator), expected=f"one of {' '.join(OPERATORS)}")
        if isinstance(self.value, str) and self.operator != "=":
            raise ExpressionError(
                f"the word {shown(self.value)} after {self.operator}",
                position=position_of(self, 1),
                expected="a number",
                todo="Words have no order; compare them with = and !=.",
            )
        object.__setattr__(self, "value", _literal(self.value))

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class Between:
    """An attribute between two numbers, each end closed or open."""

    name: str
    low: float
    high: float
    low_open: bool = False
    high_open: bool = False
    positions: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_name(self.name, "an attribute in a condition")
        _set_ends(self, self.low_open, self.high_open)

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class Membership:
    """An attribute that is one of the items."""

    name: str
    items: tuple[Item, ...]
    positions: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_name(self.name, "an attribute in a condition")
        items = tuple(
            item if isinstance(item, ValueRange) else _literal(item) for item in self.items
        )
        if not items:
            raise MisuseError("no item", where=f"{self.name} in (…)", expected="one or more")
        object.__setattr__(self, "items", items)

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class Not:
    """True where the part is false; a missing value stays unknown."""

    part: Expression
    nesting: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "nesting", _checked_nesting(1 + _parenthesised(self.part, And, Or))
        )

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class And:
    """True where all parts are true; two or more, none of them an And (those are merged in)."""

    parts: tuple[Expression, ...]
    nesting: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(self.parts, And))
        nesting = max(_parenthesised(part, Or) for part in self.parts)
        object.__setattr__(self, "nesting", _checked_nesting(nesting))

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class Or:
    """True where some part is true; two or more, none of them an Or (those are merged in)."""

    parts: tuple[Expression, ...]
    nesting: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(self.parts, Or))
        nesting = max(_parenthesised(part) for part in self.parts)
        object.__setattr__(self, "nesting", _checked_nesting(nesting))

    def __str__(self) -> str:
        return _text(self)


Condition: TypeAlias = Compare | Between | Membership
Expression: TypeAlias = Compare | Between | Membership | Not | And | Or


def names_in(expression: Expression) -> frozenset[str]:
    """Return the attributes that the expression names; O(size)."""
    if isinstance(expression, Not):
        return names_in(expression.part)
    if isinstance(expression, (And, Or)):
        return frozenset().union(*map(names_in, expression.parts))
    return frozenset((expression.name,))


def position_of(condition: Condition, which: int = 0) -> int:
    """Return the position of the name (0) or a value (1, 2, …) in the text, or 0 without a text."""
    positions = condition.positions
    return positions[min(which, len(positions) - 1)] if positions else 0


def _text(expression: Expression) -> str:
    from nearcast.model.where.printing import (
        where_text,  # printing imports the tree, not the reverse
    )

    return where_text(expression)


def _literal(value: object) -> Literal:
    if not isinstance(value, str):
        return as_number(value, "a condition")
    if not is_text(value):
        raise MisuseError(shown(value), expected="text without lone surrogates")
    return value


def _set_ends(ends: ValueRange | Between, low_open: bool, high_open: bool) -> None:
    for which in ("low", "high"):
        value = getattr(ends, which)
        if isinstance(value, str):
            raise MisuseError(shown(value), where="a range", expected="numbers at both ends")
        object.__setattr__(ends, which, as_number(value, "a range"))
    if ends.low > ends.high:
        raise OutOfRangeError(
            f"the reversed range from {number_text(ends.low)} to {number_text(ends.high)}",
            expected="the lower end first",
            todo=f"Write {number_text(ends.high)}..{number_text(ends.low)}.",
        )
    if ends.low == ends.high and (low_open or high_open):
        raise OutOfRangeError(
            f"an empty range at {number_text(ends.low)}", expected="a range with a value in it"
        )


def _flat(parts: tuple[Expression, ...], kind: type[And] | type[Or]) -> tuple[Expression, ...]:
    flat: list[Expression] = []
    for part in parts:
        if isinstance(part, kind):
            flat.extend(part.parts)
        else:
            flat.append(part)
    if len(flat) < 2:
        raise MisuseError(f"{len(flat)} part(s)", where=kind.__name__, expected="two parts or more")
    return tuple(flat)


def _parenthesised(part: Expression, *kinds: type) -> int:
    """Return the nesting depth of the part when printed, with parentheses around it."""
    nesting = part.nesting if isinstance(part, (Not, And, Or)) else 0
    return nesting + isinstance(part, kinds)


def _checked_nesting(nesting: int) -> int:
    if nesting > NESTING_LIMIT:
        raise LimitError(
            f"conditions nested {nesting} deep", expected=f"at most {NESTING_LIMIT} levels"
        )
    return nesting
