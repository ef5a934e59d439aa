"""Attributes: what they may be, and how values become coordinates."""

import math
import pickle

import pytest

from nearcast.model import MISSING, Attribute, MisuseError, OutOfRangeError, UnknownNameError


def test_a_number_is_its_own_coordinate() -> None:
    price = Attribute.number("price", 0, 1000)
    assert [price.encode(x) for x in (0, 12.5, "7.25", 1000)] == [0, 12.5, 7.25, 1000]
    assert price.decode(12.5) == 12.5
    assert not price.is_category


def test_categories_are_numbered_in_their_order() -> None:
    kind = Attribute.category("kind", ["food", "tools", "25"])
    assert [kind.encode(name) for name in kind.categories] == [0, 1, 2]
    assert kind.decode(kind.encode("tools")) == "tools"
    assert (kind.low, kind.high) == (-0.5, 2.5)
    assert kind.is_category


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1e999", 10**400, -1, 1001])
def test_a_number_outside_the_range_is_refused(bad: object) -> None:
    with pytest.raises(OutOfRangeError, match="price"):
        Attribute.number("price", 0, 1000).encode(bad)


@pytest.mark.parametrize(
    "bad", ["cheap", "nan", "inf", None, True, [1], b"5", "1_0", "", "0x10", 1j]
)
def test_what_is_no_number_is_refused(bad: object) -> None:
    with pytest.raises(MisuseError, match="expected a number"):
        Attribute.number("price", 0, 1000).encode(bad)


def test_an_unknown_category_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean tools"):
        Attribute.category("kind", ["food", "tools"]).encode("Tool")
    with pytest.raises(MisuseError):
        Attribute.category("kind", ["food", "tools"]).encode(1)


@pytest.mark.parametrize("name", ["", "two words", "3d", "AND", "in", "a-", "x.y", None, "\ud800"])
def test_a_name_that_the_language_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="name"):
        Attribute.number(name, 0, 1)


@pytest.mark.parametrize(("low", "high"), [(1, 0), (1, 1), (math.nan, 1), (0, math.inf)])
def test_a_range_needs_two_finite_ends_in_order(low: float, high: float) -> None:
    with pytest.raises(OutOfRangeError):
        Attribute.number("x", low, high)


def test_a_range_too_wide_for_float64_is_refused() -> None:
    with pytest.raises(OutOfRangeError):
        Attribute.number("x", -1.7e308, 1.7e308)
    with pytest.raises(OutOfRangeError):
        Attribute.number("x", 0, MISSING)
    assert Attribute.number("x", 0, 1e308).high < MISSING


@pytest.mark.parametrize("names", [[], ["a", "a"], [""], ["a", 5], "abc", ["\udfff"]])
def test_category_names_are_distinct_texts(names: list[str]) -> None:
    with pytest.raises(MisuseError):
        Attribute.category("kind", names)


def test_a_range_beside_categories_is_refused() -> None:
    with pytest.raises(MisuseError):
        Attribute("kind", 0, 5, ("a", "b"))


def test_attributes_compare_hash_and_pickle() -> None:
    kind = Attribute.category("kind", ["a", "b"])
    assert pickle.loads(pickle.dumps(kind)) == kind
    assert len({kind, Attribute.category("kind", ["a", "b"])}) == 1
    assert kind != Attribute.category("kind", ["b", "a"])
