"""The `where` language as text: reading, printing, and refusing what it cannot read."""

import pickle
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import (
    NESTING_LIMIT,
    And,
    Between,
    Compare,
    Expression,
    ExpressionError,
    LimitError,
    Membership,
    MisuseError,
    NearcastError,
    Not,
    Or,
    OutOfRangeError,
    ValueRange,
    decode_level,
    encode_level,
    names_in,
    parse_where,
    where_level,
    where_text,
)

names = st.sampled_from(["x", "age", "sub-kind", "größe", "_a1", "nota", "inn"])
numbers = st.one_of(
    st.sampled_from([0.0, -1.0, 20.0, 25.0, 0.1, 1e22, -1e-7, 5e-324, 1.7976931348623157e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)
words = st.one_of(
    st.sampled_from(
        ["food", "and", "NOT", "two words", "25", "", 'q"q', "q'q", "\\", "a/b+#%", "\n\0"]
    ),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8),
)


@st.composite
def betweens(draw: st.DrawFn) -> Between:
    low, high = sorted(draw(st.tuples(numbers, numbers)))
    opens = (False, False) if low == high else draw(st.tuples(st.booleans(), st.booleans()))
    return Between(draw(names), low, high, *opens)


spans = st.tuples(numbers, numbers).map(lambda ends: ValueRange(min(ends), max(ends)))
items = st.lists(st.one_of(numbers, words, spans), min_size=1, max_size=3).map(tuple)
compares = st.one_of(
    st.builds(Compare, names, st.sampled_from(["<", "<=", ">", ">=", "="]), numbers),
    st.builds(Compare, names, st.just("="), words),
)
conditions = st.one_of(compares, betweens(), st.builds(Membership, names, items))


def compound(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, parts), st.builds(And, several), st.builds(Or, several))


expressions: st.SearchStrategy[Expression] = st.recursive(conditions, compound, max_leaves=8)


@given(expressions)
def test_a_printed_expression_reads_back_as_itself(expression: Expression) -> None:
    text = where_text(expression)
    assert parse_where(text) == expression
    assert where_text(parse_where(text)) == text == str(expression)


@given(expressions)
def test_the_level_form_reads_back_as_itself(expression: Expression) -> None:
    level = where_level(expression)
    assert not set(level) & set("/+# \t\n\0")
    assert parse_where(decode_level(level)) == expression
    assert where_level(parse_where(decode_level(level))) == level


@given(expressions, st.integers(0, 2**32))
def test_blanks_quotes_and_keyword_case_do_not_change_the_canonical_text(
    expression: Expression, seed: int
) -> None:
    chance = random.Random(seed)
    text = where_text(expression)
    assert where_text(parse_where(respelled(text, chance))) == text


def respelled(text: str, chance: random.Random) -> str:
    """Write the same in another way, token by token."""
    import re

    pieces = re.findall(r'"(?:[^"\\]|\\.)*"|[^"\s(),]+|[(),]', text)
    for n, piece in enumerate(pieces):
        if piece in ("and", "or", "not", "in"):
            pieces[n] = chance.choice([piece, piece.upper(), piece.title()])
        elif piece == "=":
            pieces[n] = chance.choice(["=", "=="])
        elif piece[0] == '"' and "'" not in piece:
            pieces[n] = chance.choice([piece, f"'{piece[1:-1]}'"])
    return "".join(piece + chance.choice([" ", "  ", "\t", "\n "]) for piece in pieces)


@pytest.mark.parametrize(
    ("text", "canonical", "level"),
    [
        (
            'price < 100 and 20 <= age <= 25 and kind in ("food","tools")',
            'price < 100 and 20 <= age <= 25 and kind in ("food", "tools")',
            "price<100;age=20..25;kind%20in(food,tools)",
        ),
        (
            "price<100;age=20..25;kind=food",
            'price < 100 and 20 <= age <= 25 and kind = "food"',
            "price<100;age=20..25;kind=food",
        ),
        ("100 > price", "price < 100", "price<100"),
        ("25 > age >= 20", "20 <= age < 25", "20<=age<25"),
        ("age in 20..25", "20 <= age <= 25", "age=20..25"),
        ("age != 20..25", "not 20 <= age <= 25", "age!=20..25"),
        ("not a=1", "a != 1", "a!=1"),
        ("not not a=1", "not a != 1", "not%20a!=1"),
        ("NOT kind IN ('a')", 'kind not in ("a")', "kind%20not%20in(a)"),
        ("not a<1", "not a < 1", "not%20a<1"),
        ("not (a=1 or b=2)", "not (a = 1 or b = 2)", "not(a=1%20or%20b=2)"),
        ("((a=1))", "a = 1", "a=1"),
        ("(a=1 and b=2) and c=3", "a = 1 and b = 2 and c = 3", "a=1;b=2;c=3"),
        ("a=1 or b=2 and c=3", "a = 1 or b = 2 and c = 3", "a=1%20or%20b=2%20and%20c=3"),
        ("(a=1 or b=2);c=3", "(a = 1 or b = 2) and c = 3", "(a=1%20or%20b=2);c=3"),
        ("a=1 or (b=2;c=3)", "a = 1 or b = 2 and c = 3", "a=1%20or%20b=2%20and%20c=3"),
        ("'two words' = k", 'k = "two words"', 'k="two%20words"'),
        (r'k = "a\"b\\\u0041"', r'k = "a\"b\\A"', r'k="a\"b\\A"'),
        ("k = and-so-on", 'k = "and-so-on"', "k=and-so-on"),
        ("k = 'and'", 'k = "and"', 'k="and"'),
        ("a=-0", "a = 0", "a=0"),
        ("a = +1E+22", "a = 1e22", "a=1e22"),
        ("a=.5...75", "0.5 <= a <= 0.75", "a=0.5..0.75"),
        ("kind=größe", 'kind = "größe"', "kind=größe"),
    ],
)
def test_a_text_is_printed_like_this(text: str, canonical: str, level: str) -> None:
    assert where_text(parse_where(text)) == canonical
    assert where_level(parse_where(text)) == level
    assert where_text(parse_where(text.encode())) == canonical


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "found the end; expected a condition"),
        ("   ", 3, "the end"),
        ("price", 5, "a comparison or in after price"),
        ("price <", 7, "found the end; expected a number"),
        ("price < and", 8, "found 'and'"),
        ("price < 5 age", 10, "found 'age'; expected and, or, or the end"),
        ("price < 5 and", 13, "a condition"),
        ("price < 5;", 10, "a condition"),
        ("and", 0, "found 'and'; expected a condition"),
        ("(a=1", 4, r"\) for the \( at position 0"),
        ("a=1)", 3, r"found '\)'"),
        ("()", 1, r"found '\)'; expected a condition"),
        ("a in ()", 6, "expected a number, a word or a quoted word"),
        ("a in (1,)", 8, "a number, a word"),
        ("a in (1 2)", 8, r", or \) for the \( at position 5"),
        ("a in 5", 6, r"\.\. and the upper end"),
        ("a in b", 5, r"\( or a range"),
        ("a not 5", 6, "expected in"),
        ("a < 1..2", 5, "A range goes with"),
        ("a = 1..b", 7, "expected a number"),
        ("a = 'x'..5", 4, "expected a number"),
        ("a < 5 < 6", 6, "attribute in the middle"),
        ("1 < a > 2", 6, "goes on from <"),
        ("1 < a = 2", 6, "goes on from <"),
        ("1 < a < 'b'", 8, "expected a number"),
        ("1 < 2", 4, "the name of an attribute"),
        ("5", 1, "a comparison after '5'"),
        ("a < b", 4, "expected a number"),
        ("'b' < a", 0, "expected a number"),
        ("a = 'open", 4, "a closing '"),
        (r"a = '\x'", 5, "one of the escapes"),
        (r"a = '\ud800'", 5, "one of the escapes"),
        ("a = 3d", 4, "needs quotes"),
        ("a = 20.", 6, r"found '\.'"),
        ("a = 1 & b = 2", 6, "found '&'"),
        ("a = ५", 4, "found '५'"),
        ("a = - 5", 4, "found '-'"),
        ("a=1 or b=2;c=3", 10, "parentheses that say what belongs together"),
        ("a=1;b=2 or c=3", 3, "parentheses"),
        ("a = \ud800", 4, "lone surrogate"),
    ],
)
def test_a_bad_text_is_answered_with_place_and_expectation(
    text: str, position: int, says: str
) -> None:
    with pytest.raises(ExpressionError, match=says) as caught:
        parse_where(text)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("25 <= age <= 20", "position 0: found the reversed range from 25 to 20"),
        ("a=1 and age = 5..1", "position 14.*Write 1..5"),
        ("age in (1, 5..1)", "position 11.*reversed"),
        ("5 < a < 5", "empty range at 5"),
        ("5 <= a < 5", "empty range"),
        ("a < 1e999", "position 4: found 1e999; expected a finite number"),
        ("-1e999 < a < 5", "finite"),
        ("a in (1, 1e400)", "position 9"),
    ],
)
def test_a_range_that_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(OutOfRangeError, match=says):
        parse_where(text)


@pytest.mark.parametrize("word", ["nan", "inf", "Infinity", "-inf"])
def test_nan_and_infinity_are_no_numbers(word: str) -> None:
    with pytest.raises(ExpressionError):
        parse_where(f"a < {word}")


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(ExpressionError, match="position 4: found the byte 0xff; expected UTF-8"):
        parse_where(b"a = \xff")


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "a=1 and " * 1_300_000,
        "(" * 10_000_000,
        b"\xff" * 10_000_000,
        "ü" * 40_000,
    ],
)
@pytest.mark.timeout(60)
def test_a_long_text_is_refused_before_it_is_read(text: str | bytes) -> None:
    with pytest.raises(LimitError, match="bytes; expected at most 65,536"):
        parse_where(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "a=1" + ")" * 10_000,
        "not " * 10_000 + "a=1",
        "not (" * 5_000 + "a=1" + ")" * 5_000,
        "(a=1 or " * 5_000,
        "(a=1 and (b=1 or " * 3_000,
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(LimitError, match="nested"):
        parse_where(text)


def test_a_hundred_levels_are_read_and_printed() -> None:
    deep = "(a=1 or b=2 and " * NESTING_LIMIT + "c=3" + ")" * NESTING_LIMIT
    expression = parse_where(deep)
    assert parse_where(str(expression)) == expression
    assert parse_where("(" * NESTING_LIMIT + "a=1" + ")" * NESTING_LIMIT) == parse_where("a=1")
    assert hash(expression) == hash(parse_where(deep))
    with pytest.raises(LimitError):
        parse_where(f"({deep})")


def test_a_tree_made_by_hand_cannot_be_too_deep_either() -> None:
    expression: Expression = Compare("a", "=", 1)
    for _ in range(NESTING_LIMIT):
        expression = Not(expression)
    with pytest.raises(LimitError):
        Not(expression)
    assert parse_where(str(expression)) == expression


def test_parentheses_count_in_a_tree_made_by_hand() -> None:
    atom: Expression = Compare("a", "=", 1)
    expression = atom
    for _ in range(NESTING_LIMIT):
        expression = And((atom, Or((atom, expression))))
    assert parse_where(str(expression)) == expression
    assert parse_where(decode_level(where_level(expression))) == expression
    with pytest.raises(LimitError):
        And((atom, Or((atom, expression))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Compare("a", "<", "word"),
        lambda: Compare("a", "~", 1),
        lambda: Compare("two words", "=", 1),
        lambda: Compare("a", "=", float("nan")),
        lambda: Compare("a", "=", "\ud800"),
        lambda: Compare("a", "=", None),  # type: ignore[arg-type]
        lambda: Between("a", 2, 1),
        lambda: Between("a", 1, 1, True),
        lambda: Between("a", "1", "2"),  # type: ignore[arg-type]
        lambda: Membership("a", ()),
        lambda: ValueRange(2, 1),
        lambda: And((Compare("a", "=", 1),)),
        lambda: Or(()),
    ],
)
def test_a_tree_that_says_nothing_sensible_cannot_be_made(make: object) -> None:
    with pytest.raises(MisuseError):
        make()  # type: ignore[operator]


def test_an_expression_knows_its_attributes_and_pickles() -> None:
    expression = parse_where("not (a=1 or 1<b<2) and c in (x, y)")
    assert names_in(expression) == {"a", "b", "c"}
    assert pickle.loads(pickle.dumps(expression)) == expression


@given(st.text(max_size=20))
def test_a_level_reads_back_as_the_text_that_went_in(text: str) -> None:
    try:
        level = encode_level(text)
    except ExpressionError:
        assert any("\ud800" <= c <= "\udfff" for c in text)
    else:
        assert decode_level(level) == text
        assert not set(level) & set("/+# \0\n")


@pytest.mark.parametrize("level", ["%", "a%2", "%zz", "%%", "%ff", "%C3", "a%C3(", "%ED%A0%80"])
def test_a_level_with_a_bad_escape_is_refused(level: str) -> None:
    with pytest.raises(ExpressionError, match="position"):
        decode_level(level)


pieces = st.sampled_from(
    ["a", "kind", "1", "2.5", "-3", "1e5", "'x'", '"y"', "<", "<=", "=", "==", "!=", ">", ">=",
     "in", "not", "and", "or", ";", "(", ")", ",", "..", " ", "\\", "'", '"', "é", "\n", "1e999",
     ".", "%"]
)  # fmt: skip


@given(
    st.one_of(
        st.lists(pieces, max_size=15).map(" ".join),
        st.lists(pieces, max_size=15).map("".join),
        st.text(),
        st.binary(),
    )
)
def test_any_text_is_read_or_refused_in_our_own_words(text: str | bytes) -> None:
    with suppress(NearcastError):
        expression = parse_where(text)
        assert where_text(parse_where(str(expression))) == str(expression)
