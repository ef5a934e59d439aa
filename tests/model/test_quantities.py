"""Lengths, durations and plain numbers."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import MisuseError, NearcastError, parse_duration, parse_length
from nearcast.model.quantities import as_number, number_text


@pytest.mark.parametrize(
    ("text", "metres"),
    [("500m", 500), ("2km", 2000), (" 1.5 KM ", 1500), ("1mi", 1609.344), ("1nmi", 1852),
     ("10ft", 3.048), ("1e3m", 1000), (".5km", 500), ("1yd", 0.9144)],
)  # fmt: skip
def test_a_length_is_read_in_metres(text: str, metres: float) -> None:
    assert parse_length(text) == pytest.approx(metres)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("2s", 2), ("1.5min", 90), ("1h", 3600), ("1d", 86400), ("5us", 5e-6),
     ("0s", 0)],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "m", "500", "-5m", "0m", "1e999m", "nan m", "infm", "5 parsecs", "5mm5", "५m", "1__0m",
     "5m\x00", "1" * 10_000_000 + "m", "5 m m", None, 5, b"5m"],
)  # fmt: skip
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        parse_length(text)


@pytest.mark.parametrize("text", ["", "5", "5m", "-1s", "1e999s", "five s", "s", None])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        parse_duration(text)


def test_the_error_names_the_units() -> None:
    with pytest.raises(MisuseError, match=r"no unit in '500'.*m, km, mi"):
        parse_length("500")


@given(st.text(alphabet="0123456789.eE+-mskhind \t", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_length, parse_duration):
        with suppress(NearcastError):
            assert math.isfinite(parse(text))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_number_reads_back(value: float) -> None:
    assert as_number(number_text(value)) == value
    assert "+" not in number_text(value)


def test_minus_zero_is_zero() -> None:
    assert math.copysign(1, as_number("-0")) == 1
    assert math.copysign(1, as_number(-0.0)) == 1
