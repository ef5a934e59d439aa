"""An expression as text again, in two forms that both read back as the same tree.

| form | example | for |
|---|---|---|
| canonical | `price < 100 and kind in ("food", "tools")` | people, user properties, identity |
| level | `price<100;kind%20in(food,tools)` | one level of a topic filter (`$where/…/`) |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from nearcast.model.quantities import number_text
from nearcast.model.where.expression import (
    And,
    Between,
    Condition,
    Expression,
    Item,
    Membership,
    Not,
    Or,
    ValueRange,
)
from nearcast.model.where.levels import encode_level
from nearcast.model.where.names import is_bare_word

_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def where_text(expression: Expression) -> str:
    """Return the canonical text; `parse_where` reads it back as an equal expression. O(size).

    >>> from nearcast.model import parse_where
    >>> where_text(parse_where("PRICE<100 AND kind=='food'"))
    'PRICE < 100 and kind = "food"'
    """
    return _Style("", " ", ", ", quoted, _canonical_between).text(expression)


def where_level(expression: Expression) -> str:
    """Return the shortest text for a `$where/…/` level, percent-encoded. O(size).

    >>> from nearcast.model import parse_where
    >>> where_level(parse_where("price < 100 and 20 <= age <= 25 and kind = 'food'"))
    'price<100;age=20..25;kind=food'
    """
    return encode_level(_Style(";", "", ",", _bare, _short_between).text(expression))


def quoted(word: str) -> str:
    r"""Return the word in double quotes, with escapes.

    >>> print(quoted('say "hi"'))
    "say \"hi\""
    """
    return f'"{_ESCAPED.sub(_escape, word)}"'


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT.get(character, f"\\u{ord(character):04x}")


def _bare(word: str) -> str:
    return word if is_bare_word(word) else quoted(word)


class _Style(NamedTuple):
    """The style of a text: the sign for `and`, the blank, the comma, a word."""

    and_sign: str
    blank: str
    comma: str
    word: Callable[[str], str]
    between: Callable[[Between, bool], str | None]

    def text(self, expression: Expression) -> str:
        if isinstance(expression, Or):
            return " or ".join(self._alternative(part) for part in expression.parts)
        if isinstance(expression, And):
            return (self.and_sign or " and ").join(map(self._factor, expression.parts))
        return self._factor(expression)

    def _alternative(self, part: Expression) -> str:
        # `;` may not be beside `or`, so an And inside an Or is always written with `and`.
        if isinstance(part, And):
            return " and ".join(map(self._factor, part.parts))
        return self._factor(part)

    def _factor(self, part: Expression) -> str:
        if isinstance(part, (And, Or)):
            return f"({self.text(part)})"
        if isinstance(part, Not):
            return self._negation(part.part)
        return self._condition(part, negated=False)

    def _negation(self, part: Expression) -> str:
        if isinstance(part, (And, Or)):
            return f"not{self.blank}({self.text(part)})"
        if isinstance(part, Not):
            return f"not {self._negation(part.part)}"
        return self._condition(part, negated=True)

    def _condition(self, condition: Condition, negated: bool) -> str:
        if isinstance(condition, Membership):
            items = self.comma.join(map(self._item, condition.items))
            return f"{condition.name}{' not in' if negated else ' in'}{self.blank}({items})"
        if isinstance(condition, Between):
            short = self.between(condition, negated)
            return short or f"not {self.between(condition, False)}"
        operator = condition.operator
        if negated and operator == "=":
            operator, negated = "!=", False
        pieces = (condition.name, operator, self._item(condition.value))
        return f"{'not ' if negated else ''}{self.blank.join(pieces)}"

    def _item(self, item: Item) -> str:
        if isinstance(item, ValueRange):
            return f"{number_text(item.low)}..{number_text(item.high)}"
        return self.word(item) if isinstance(item, str) else number_text(item)


def _canonical_between(condition: Between, negated: bool) -> str | None:
    return None if negated else _chain(condition, " ")


def _short_between(condition: Between, negated: bool) -> str | None:
    if condition.low_open or condition.high_open:
        return None if negated else _chain(condition, "")
    sign = "!=" if negated else "="
    return f"{condition.name}{sign}{number_text(condition.low)}..{number_text(condition.high)}"


def _chain(condition: Between, blank: str) -> str:
    left, right = "<" if condition.low_open else "<=", "<" if condition.high_open else "<="
    low, high = number_text(condition.low), number_text(condition.high)
    return blank.join((low, left, condition.name, right, high))
