"""`where` beside a brute-force evaluator: every value of a small world, missing ones too.

The generator writes a text and, along with it, a function that says from the words alone whether
it is true of given values: True, False, or None for unknown (Kleene). The text goes the whole way:
parser, tree, boxes. The function never sees them.
"""

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import (
    EVERYTHING,
    Attribute,
    Event,
    ExpressionError,
    LimitError,
    MisuseError,
    OutOfRangeError,
    Space,
    Subscription,
    UnknownNameError,
    parse_where,
)
from nearcast.model.space import Missing

Values = dict[str, Any]
Truth = Callable[[Values], bool | None]
Spoken = tuple[str, Truth]

KINDS = ["food", "tools", "two words", "25"]
NUMBERS = [0, 1, 2, 3]
COMPARE = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
ATTRIBUTES = (
    Attribute.number("x", 0, 3),
    Attribute.category("kind", KINDS),
    Attribute.number("y", 0, 3),
)
PROBES = sorted(
    {0.5, 1.5, 2.5}
    | {
        near
        for n in NUMBERS
        for near in (float(n), math.nextafter(n, -1), math.nextafter(n, 9))
        if 0 <= near <= 3
    }
)


def space(missing: Missing) -> Space:
    return Space(name="s", topic_filter="#", attributes=ATTRIBUTES, missing=missing)


def about(name: str, test: Callable[[Any], bool]) -> Truth:
    return lambda values: None if values[name] is None else test(values[name])


def negation(part: Truth) -> Truth:
    def truth(values: Values) -> bool | None:
        value = part(values)
        return None if value is None else not value

    return truth


def conjunction(parts: list[Truth]) -> Truth:
    def truth(values: Values) -> bool | None:
        found = [part(values) for part in parts]
        return False if False in found else None if None in found else True

    return truth


def disjunction(parts: list[Truth]) -> Truth:
    def truth(values: Values) -> bool | None:
        found = [part(values) for part in parts]
        return True if True in found else None if None in found else False

    return truth


keyword = st.sampled_from([str.lower, str.upper, str.title])


@st.composite
def comparisons(draw: st.DrawFn) -> Spoken:
    name, sign, number = (
        draw(st.sampled_from("xy")),
        draw(st.sampled_from(list(COMPARE))),
        draw(st.sampled_from(NUMBERS)),
    )
    if draw(st.booleans()):
        return f"{name}{sign}{number}", about(name, lambda v: COMPARE[sign](v, number))
    return f"{number}.0 {sign} {name}", about(name, lambda v: COMPARE[sign](number, v))


@st.composite
def chains(draw: st.DrawFn) -> Spoken:
    name = draw(st.sampled_from("xy"))
    low, high = sorted(
        draw(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=2, unique=True))
    )
    left, right = draw(st.sampled_from(["<", "<="])), draw(st.sampled_from(["<", "<="]))

    def test(value: float) -> bool:
        return bool(COMPARE[left](low, value) and COMPARE[right](value, high))

    if draw(st.booleans()):
        return f"{low} {left} {name} {right} {high}", about(name, test)
    flip = {"<": ">", "<=": ">="}
    return f"{high}{flip[right]}{name}{flip[left]}{low}", about(name, test)


@st.composite
def ranges(draw: st.DrawFn) -> Spoken:
    name = draw(st.sampled_from("xy"))
    low, high = sorted(draw(st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=2)))
    sign = draw(st.sampled_from(["=", "==", " in ", "!=", " not in "]))
    inside = about(name, lambda v: low <= v <= high)
    text = f"{name}{sign}{low}..{high}"
    return text, negation(inside) if sign in ("!=", " not in ") else inside


@st.composite
def memberships(draw: st.DrawFn) -> Spoken:
    name, sign = draw(st.sampled_from("xy")), draw(st.sampled_from(["in", "not in", "NOT  IN"]))
    singles = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3))
    ends = st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)).map(sorted)
    spans = draw(st.lists(ends, max_size=2))
    items = ",".join([*map(str, singles), *(f"{low}..{high}" for low, high in spans)])
    inside = about(name, lambda v: v in singles or any(lo <= v <= hi for lo, hi in spans))
    return f"{name} {sign} ({items})", inside if sign == "in" else negation(inside)


@st.composite
def categories(draw: st.DrawFn) -> Spoken:
    names = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    words = [
        word
        if word.isalpha() and draw(st.booleans())
        else draw(st.sampled_from(["'%s'", '"%s"'])) % word
        for word in names
    ]
    inside = about("kind", lambda v: v in names)
    if len(words) > 1:
        sign = draw(st.sampled_from([" in ", " not in "]))
        return f"kind{sign}({', '.join(words)})", inside if sign == " in " else negation(inside)
    if draw(st.booleans()):
        return f"kind != {words[0]}", negation(inside)
    return f"kind={words[0]}", inside


atoms = st.one_of(comparisons(), chains(), ranges(), memberships(), categories())


def inside_parentheses(spoken: Spoken) -> Spoken:
    return f"({spoken[0]})", spoken[1]


@st.composite
def sentences(draw: st.DrawFn, depth: int = 2) -> Spoken:
    """Alternatives of conjunctions of factors, without more parentheses than needed."""
    factor = st.one_of(atoms, sentences(depth - 1).map(inside_parentheses)) if depth else atoms
    alternatives = []
    for _ in range(draw(st.integers(1, 2))):
        factors = []
        for text, truth in draw(st.lists(factor, min_size=1, max_size=3)):
            spell = draw(keyword)
            negated = draw(st.integers(0, 3)) == 0
            factors.append(
                (f"{spell('not')} {text}", negation(truth)) if negated else (text, truth)
            )
        joint = f" {draw(keyword)('and')} "
        alternatives.append(
            (joint.join(t for t, _ in factors), conjunction([f for _, f in factors]))
        )
    return " or ".join(t for t, _ in alternatives), disjunction([f for _, f in alternatives])


def worlds(name: str) -> list[Any]:
    return list(KINDS) if name == "kind" else list(PROBES)


events = st.fixed_dictionaries(
    {name: st.one_of(st.none(), st.sampled_from(worlds(name))) for name in ("x", "kind", "y")}
)


@given(sentences(), st.lists(events, min_size=1, max_size=12))
def test_where_agrees_with_brute_force_when_missing_means_none(
    sentence: Spoken, values: list[Values]
) -> None:
    text, truth = sentence
    here = space("none")
    boxes = here.boxes(text, limit=10_000)
    for each in values:
        event = Event.of(here, "t", each)
        assert event.point is not None
        assert any(box.contains(event.point) for box in boxes) == (truth(each) is True), (
            text,
            each,
        )


@given(sentences(), st.lists(events, min_size=1, max_size=6))
def test_where_agrees_with_brute_force_when_missing_means_all(
    sentence: Spoken, values: list[Values]
) -> None:
    text, truth = sentence
    here = space("all")
    subscription = Subscription(topic_filter="#", where=parse_where(text))
    for each in values:
        open_values = {n: worlds(n) if v is None else [v] for n, v in each.items()}
        choices = (
            dict(zip(open_values, c, strict=True)) for c in itertools.product(*open_values.values())
        )
        wanted = any(truth(choice) is True for choice in choices)
        assert subscription.covers(Event.of(here, "t", each)) == wanted, (text, each)


@given(sentences())
def test_boxes_are_tidy(sentence: Spoken) -> None:
    here = space("all")
    boxes = here.boxes(sentence[0], limit=10_000)
    for box, other in itertools.permutations(boxes, 2):
        assert not box.covers(other)
    for side, extent in itertools.chain.from_iterable(
        zip(box.sides, here.extent.sides, strict=True) for box in boxes
    ):
        assert side == EVERYTHING or extent.covers(side)
    assert boxes == here.boxes(str(parse_where(sentence[0])), limit=10_000)


@given(sentences(), st.integers(1, 6))
def test_a_limit_is_kept_or_refused(sentence: Spoken, limit: int) -> None:
    here = space("all")
    try:
        boxes = here.boxes(sentence[0], limit)
    except LimitError:
        assert len(here.boxes(sentence[0], limit=10_000)) > 1
    else:
        assert len(boxes) <= limit
        assert boxes == here.boxes(sentence[0], limit=10_000)


def shown_boxes(where: str) -> list[str]:
    return [str(box) for box in space("all").boxes(where)]


@pytest.mark.parametrize(
    ("where", "boxes"),
    [
        ("x < 1", ["[0, 1) × [-inf, inf] × [-inf, inf]"]),
        ("x >= 1", ["[1, 3] × [-inf, inf] × [-inf, inf]"]),
        ("x < 1 or x >= 1", ["[0, 3] × [-inf, inf] × [-inf, inf]"]),
        ("x < 1 and x > 2", []),
        ("x > 3", []),
        ("x != 1", ["[0, 1) × [-inf, inf] × [-inf, inf]", "(1, 3] × [-inf, inf] × [-inf, inf]"]),
        ("x = 0..3 or x = 1..2", ["[0, 3] × [-inf, inf] × [-inf, inf]"]),
        ("kind != '25'", ["[-inf, inf] × [-0.5, 2.5] × [-inf, inf]"]),
        ("kind != food", ["[-inf, inf] × [0.5, 3.5] × [-inf, inf]"]),
        ("not kind in (food, tools, 'two words', '25')", []),
        ("kind in (food, tools)", ["[-inf, inf] × [-0.5, 1.5] × [-inf, inf]"]),
        ("kind = food or kind = food and x < 1", ["[-inf, inf] × [-0.5, 0.5] × [-inf, inf]"]),
        (
            "x=0..1 and y=0..1 or x=1..2 and y=0..1",
            ["[0, 2] × [-inf, inf] × [0, 1]"],
        ),
    ],
)
def test_an_expression_becomes_these_boxes(where: str, boxes: list[str]) -> None:
    assert shown_boxes(where) == boxes


def test_no_condition_is_the_box_that_leaves_everything_out() -> None:
    assert [str(b) for b in space("all").boxes(None)] == ["[-inf, inf] × [-inf, inf] × [-inf, inf]"]


def test_a_range_that_no_float_is_in_is_no_box() -> None:
    after = math.nextafter(1, 2)
    assert space("all").boxes(f"1 < x < {after!r}") == ()


def test_sixty_four_boxes_are_allowed_and_sixty_five_are_not() -> None:
    wide = Space(name="w", topic_filter="#", attributes=[Attribute.number("x", 0, 999)])
    listed = [f"x = {2 * n}" for n in range(65)]
    assert len(wide.boxes(" or ".join(listed[:64]))) == 64
    with pytest.raises(LimitError, match="more than 64 boxes"):
        wide.boxes(" or ".join(listed))
    assert len(wide.boxes(" or ".join(listed), limit=65)) == 65


def test_what_is_narrowed_down_later_may_be_long_on_the_way() -> None:
    wide = Space(name="w", topic_filter="#", attributes=[Attribute.number("x", 0, 9999)])
    assert len(wide.boxes(f"x in ({','.join(map(str, range(0, 5000, 2)))}) and x < 10")) == 5


@pytest.mark.parametrize(
    "where",
    [
        " and ".join(f"(a{i} < 1 or b{i} < 1)" for i in range(20)),
        "not (" + " or ".join(f"a{i} = 1 and b{i} = 1" for i in range(20)) + ")",
        " or ".join(f"x={i} and y={i}" for i in range(2000)),
        " and ".join(f"x != {i}" for i in range(4000)),
        " and ".join(f"(x != {i} or y != {i})" for i in range(200)),
        "not (" + " or ".join(f"x={i} and y={i} and z={i}" for i in range(500)) + ")",
    ],
)
@pytest.mark.timeout(120)
def test_an_expression_that_would_explode_is_refused_soon(where: str) -> None:
    many = [f"{name}{i}" for name in "ab" for i in range(20)]
    attributes = [Attribute.number(name, 0, 9999) for name in [*"xyz", *many]]
    huge = Space(name="h", topic_filter="#", attributes=attributes)
    with pytest.raises(LimitError, match="boxes"):
        huge.boxes(where)


@pytest.mark.parametrize(
    ("where", "error", "says"),
    [
        (
            "z < 1",
            UnknownNameError,
            "position 0: found the attribute 'z'; expected one of x, kind, y",
        ),
        ("x<1 and kidn=food", UnknownNameError, "position 8.*Did you mean kind"),
        ("kind = fodo", UnknownNameError, "position 7.*Did you mean food"),
        ("food = kind", UnknownNameError, "kind = food"),
        ("kind = 25", ExpressionError, "position 7.*needs quotes"),
        ("kind < 1", ExpressionError, "category attribute kind"),
        ("kind = 0..1", ExpressionError, "category attribute kind"),
        ("kind in (food, 1)", ExpressionError, "position 15"),
        ("x = food", ExpressionError, "position 4.*without quotes"),
        ("x in (1, '2')", ExpressionError, "position 9"),
        ("x = y", ExpressionError, "compared with a literal only"),
        ("x < 3.5", OutOfRangeError, "position 4: x: found 3.5; expected a number from 0 to 3"),
        ("x > -1", OutOfRangeError, "position 4"),
        ("x = 2..4", OutOfRangeError, "found 4"),
        ("0 < x < 4", OutOfRangeError, "position 8.*found 4"),
        ("4 > x > 0", OutOfRangeError, "position 0.*found 4"),
        ("x in (0, 7)", OutOfRangeError, "position 9"),
        ("x in (0, 1..7)", OutOfRangeError, "found 7"),
    ],
)
def test_what_does_not_fit_the_space_is_refused_with_its_place(
    where: str, error: type[MisuseError], says: str
) -> None:
    with pytest.raises(error, match=says):
        space("all").boxes(where)


@pytest.mark.parametrize("limit", [0, -1, 1.5, None])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(OutOfRangeError, match="limit"):
        space("all").boxes("x < 1", limit=limit)
