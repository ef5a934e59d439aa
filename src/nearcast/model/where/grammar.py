"""The grammar of the `where` language, read without recursion.

expression  = conjunction { "or" conjunction }
conjunction = factor { ("and" | ";") factor }          `;` may not stand beside a bare `or`
factor      = "not" factor | "(" expression ")" | condition
condition   = name comparison literal | literal comparison name
            | number ("<" | "<=") name ("<" | "<=") number      and the same with > and >=
            | name ("=" | "==" | "!=") range
            | name ["not"] "in" (range | "(" item { "," item } ")")
item        = literal | range
range       = number ".." number
literal     = number | word | quoted word
comparison  = "<" | "<=" | ">" | ">=" | "=" | "==" | "!="
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nearcast.model.errors import ExpressionError, LimitError, OutOfRangeError
from nearcast.model.quantities import finite
from nearcast.model.where.expression import (
    NESTING_LIMIT,
    And,
    Between,
    Compare,
    Expression,
    Item,
    Literal,
    Membership,
    Not,
    Or,
    ValueRange,
)
from nearcast.model.where.tokens import Token, TokenKind, checked_text, tokens_of

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_CONDITION = "a condition such as price < 100"
_LITERALS = (TokenKind.NUMBER, TokenKind.WORD, TokenKind.STRING)


def parse_where(text: str | bytes) -> Expression:
    """Return the expression of a text; O(length).

    Raises ExpressionError with the position and what was expected, OutOfRangeError for a reversed
    range or a number that is not finite, LimitError for a text over 64 KiB or nested over 100 deep.

    >>> parse_where("20 <= age < 25")
    Between(name='age', low=20.0, high=25.0, low_open=False, high_open=True)
    """
    return _Parser(tokens_of(checked_text(text, "an expression"))).expression()


class _Group:
    """The state of one open parenthesis."""

    __slots__ = ("alternatives", "factors", "negations", "semicolon", "start")

    def __init__(self, start: Token) -> None:
        self.start = start
        self.alternatives: list[Expression] = []
        self.factors: list[Expression] = []
        self.negations = 0  # number of `not`s before the next factor
        self.semicolon: Token | None = None

    def add(self, factor: Expression) -> None:
        for _ in range(self.negations):
            factor = Not(factor)
        self.negations = 0
        self.factors.append(factor)

    def close_conjunction(self) -> None:
        parts = tuple(self.factors)
        self.alternatives.append(parts[0] if len(parts) == 1 else And(parts))
        self.factors = []

    def close(self) -> Expression:
        self.close_conjunction()
        if len(self.alternatives) == 1:
            return self.alternatives[0]
        if self.semicolon is not None:
            raise ExpressionError(
                "';' beside 'or'",
                position=self.semicolon.position,
                expected="parentheses that say what belongs together",
                todo="Write (a or b);c or a or (b;c).",
            )
        return Or(tuple(self.alternatives))


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def expression(self) -> Expression:
        groups = [_Group(self._peek())]
        while True:
            self._factor(groups)
            closed = self._after_factor(groups)
            if closed is not None:
                return closed

    def _factor(self, groups: list[_Group]) -> None:
        """Read up to and including a condition: `not`s and opening parentheses before it."""
        nesting = len(groups) - 1 + sum(group.negations for group in groups)
        while True:
            token = self._peek()
            if _is(token, TokenKind.KEYWORD, "not"):
                groups[-1].negations += 1
            elif _is(token, TokenKind.SIGN, "("):
                groups.append(_Group(token))
            else:
                groups[-1].add(self._condition())
                return
            self._take()
            nesting += 1
            if nesting > NESTING_LIMIT:
                raise LimitError(
                    f"more than {NESTING_LIMIT} nested parentheses and nots",
                    where=f"position {token.position}",
                    expected="a flatter expression",
                )

    def _after_factor(self, groups: list[_Group]) -> Expression | None:
        """Read closing parentheses and the next `and`, `;` or `or`; at the end return the tree."""
        while True:
            token = self._take()
            if _is(token, TokenKind.SIGN, ")") and len(groups) > 1:
                inner = groups.pop().close()
                groups[-1].add(inner)
            elif _is(token, TokenKind.KEYWORD, "or"):
                groups[-1].close_conjunction()
                return None
            elif _is(token, TokenKind.KEYWORD, "and"):
                return None
            elif _is(token, TokenKind.SIGN, ";"):
                groups[-1].semicolon = token
                return None
            elif token.kind is TokenKind.END and len(groups) == 1:
                return groups[0].close()
            else:
                raise self._cannot_go_on(token, groups)

    @staticmethod
    def _cannot_go_on(token: Token, groups: list[_Group]) -> ExpressionError:
        if token.kind is TokenKind.COMPARISON:
            return _unexpected(
                token, "and, or", "A chain has the attribute in the middle: 20 <= age < 25."
            )
        if len(groups) == 1:
            return _unexpected(token, "and, or, or the end")
        return _unexpected(
            token, f"and, or, or ) for the ( at position {groups[-1].start.position}"
        )

    def _condition(self) -> Expression:
        first = self._take()
        if first.kind is TokenKind.WORD:
            return self._named_condition(first)
        if first.kind in (TokenKind.NUMBER, TokenKind.STRING):
            return self._literal_first(first)
        raise _unexpected(first, _CONDITION)

    def _named_condition(self, name: Token) -> Expression:
        token = self._take()
        if token.kind is TokenKind.COMPARISON:
            return self._compared(name, token)
        negated = _is(token, TokenKind.KEYWORD, "not")
        if negated:
            token = self._take()
        if not _is(token, TokenKind.KEYWORD, "in"):
            expected = "in" if negated else f"a comparison or in after {name.text}"
            raise _unexpected(token, expected, "Comparisons are < <= > >= = !=.")
        member = self._membership(name)
        return Not(member) if negated else member

    def _compared(self, name: Token, comparison: Token) -> Expression:
        value = self._take()
        if _is(self._peek(), TokenKind.SIGN, ".."):
            if comparison.text not in ("=", "!="):
                raise _unexpected(self._peek(), "one number", "A range goes with =, != or in.")
            between = self._range_of(name, value)
            return Not(between) if comparison.text == "!=" else between
        return _compare(name, comparison.text, value)

    def _membership(self, name: Token) -> Expression:
        opening = self._take()
        if opening.kind is TokenKind.NUMBER:
            return self._range_of(name, opening)
        if not _is(opening, TokenKind.SIGN, "("):
            raise _unexpected(opening, "( or a range such as 20..25")
        items: list[Item] = []
        positions = [name.position]
        while True:
            token = self._take()
            positions.append(token.position)
            items.append(self._item(token))
            sign = self._take()
            if _is(sign, TokenKind.SIGN, ")"):
                return Membership(name.text, tuple(items), tuple(positions))
            if not _is(sign, TokenKind.SIGN, ","):
                raise _unexpected(sign, f", or ) for the ( at position {opening.position}")

    def _item(self, token: Token) -> Item:
        if not _is(self._peek(), TokenKind.SIGN, ".."):
            return _literal(token)
        low, high = self._range_ends(token)
        with _placed(token):
            return ValueRange(low, high)

    def _range_of(self, name: Token, low: Token) -> Expression:
        ends = self._range_ends(low)
        with _placed(low):
            return Between(name.text, *ends, positions=(name.position, low.position))

    def _range_ends(self, low: Token) -> tuple[float, float]:
        dots = self._take()
        if not _is(dots, TokenKind.SIGN, ".."):
            raise _unexpected(dots, ".. and the upper end of the range")
        return _number(low), _number(self._take())

    def _literal_first(self, literal: Token) -> Expression:
        comparison, name = self._take(), self._take()
        if comparison.kind is not TokenKind.COMPARISON:
            raise _unexpected(comparison, f"a comparison after {literal}")
        if name.kind is not TokenKind.WORD:
            raise _unexpected(name, "the name of an attribute")
        if self._peek().kind is TokenKind.COMPARISON:
            return self._chain(literal, comparison, name)
        return _compare(name, _MIRRORED[comparison.text], literal)

    def _chain(self, left: Token, comparison: Token, name: Token) -> Expression:
        second, right = self._take(), self._take()
        signs = {comparison.text, second.text}
        if not (signs <= {"<", "<="} or signs <= {">", ">="}):
            raise _unexpected(
                second, f"a comparison that goes on from {comparison.text}", "As in 20 <= age < 25."
            )
        ends = [(_number(left), comparison.text, left), (_number(right), second.text, right)]
        if comparison.text[0] == ">":
            ends.reverse()
        (low, low_sign, first), (high, high_sign, last) = ends
        opens = (len(low_sign) == 1, len(high_sign) == 1)
        positions = (name.position, first.position, last.position)
        with _placed(left):
            return Between(name.text, low, high, *opens, positions)

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token


def _is(token: Token, kind: TokenKind, text: str) -> bool:
    return token.kind is kind and token.text == text


def _unexpected(token: Token, expected: str, todo: str = "") -> ExpressionError:
    return ExpressionError(str(token), position=token.position, expected=expected, todo=todo)


def _literal(token: Token) -> Literal:
    if token.kind is TokenKind.NUMBER:
        return _number(token)
    if token.kind in _LITERALS:
        return token.text
    raise _unexpected(token, "a number, a word or a quoted word")


def _number(token: Token) -> float:
    if token.kind is not TokenKind.NUMBER:
        raise _unexpected(token, "a number")
    return finite(float(token.text), token.text, f"position {token.position}")


def _compare(name: Token, operator: str, value: Token) -> Expression:
    positions = (name.position, value.position)
    if operator == "!=":
        return Not(Compare(name.text, "=", _literal(value), positions))
    return Compare(name.text, operator, _literal(value), positions)


@contextmanager
def _placed(token: Token) -> Iterator[None]:
    """Add the position to an error about a range."""
    try:
        yield
    except OutOfRangeError as problem:
        place = f"position {token.position}"
        raise OutOfRangeError(
            problem.found, where=place, expected=problem.expected, todo=problem.todo
        ) from None
