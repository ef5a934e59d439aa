"""Rectangles under names, beside a look at each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import Rect
from nearcast.locality.registration import registration_index
from nearcast.locality.registration.registration_index import RegistrationIndex

MARKS = st.integers(0, 6).map(float)
NAMES = st.integers(0, 7)


@st.composite
def rects(draw: st.DrawFn) -> Rect:
    (west, east), (south, north) = (sorted(draw(st.tuples(MARKS, MARKS))) for _ in range(2))
    return Rect(west, south, east, north)


CHANGES = st.lists(st.tuples(NAMES, st.lists(rects(), max_size=3)), max_size=20)


@given(CHANGES, rects(), st.sampled_from([1, 4, 100]))
def test_what_meets_an_area_is_found_with_and_without_an_index(
    changes: list[tuple[int, list[Rect]]], area: Rect, many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration_index, "MANY", many)
        tried: RegistrationIndex[int] = RegistrationIndex()
        held: dict[int, Rect] = {}
        for name, some in changes:
            if some:
                tried.put(name, some)
                held[name] = Rect(
                    min(one.west for one in some),
                    min(one.south for one in some),
                    max(one.east for one in some),
                    max(one.north for one in some),
                )
            else:
                tried.drop(name)
                held.pop(name, None)
        found = tried.meeting(area)
    assert sorted(found) == sorted(name for name, one in held.items() if one.intersects(area))
    assert len(tried) == len(held)
