"""Which events a renewed registration must be compared with: those of times it is new for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.holder import Holder, _unspoken
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventOffer,
    HolderMatch,
    PlacedEvent,
    Register,
    Timing,
)

HERE = Rect(0.0, 0.0, 1.0, 1.0)
THERE = Rect(5.0, 0.0, 6.0, 1.0)
TIMES = range(12)


@st.composite
def _spans(draw: st.DrawFn) -> tuple[CoverSpan, ...]:
    """Draw spans as gateways tell them: one after the other, only the last may be open."""
    bounds = sorted(draw(st.sets(st.sampled_from(TIMES), min_size=2, max_size=5)))
    ends: list[int | None] = list(bounds[1:])
    if draw(st.booleans()):
        ends[-1] = None
    leaves = st.sampled_from([("a",), ("b",), ("a", "b")])
    return tuple(
        CoverSpan(draw(leaves), draw(st.sampled_from([HERE, THERE])), since, until)
        for since, until in zip(bounds, ends, strict=False)
        if draw(st.booleans())
    )


def _speaks_of(since: int, until: int | None, at: int) -> bool:
    return since <= at and (until is None or at < until)


@given(_spans(), _spans())
def test_a_time_is_new_if_it_is_spoken_of_now_and_was_not_before(
    spans: tuple[CoverSpan, ...], before: tuple[CoverSpan, ...]
) -> None:
    found = _unspoken(spans, before, "a")
    for at in TIMES:
        is_told = any("a" in one.leaves and _speaks_of(one.since, one.until, at) for one in spans)
        was_told = False
        for one in before:
            until = one.until
            if until is None:  # it was open: how long it held is said of the same span, or not
                same = [now for now in spans if (now.since, now.cover) == (one.since, one.cover)]
                until = same[0].until if same else one.since
            was_told |= "a" in one.leaves and _speaks_of(one.since, until, at)
        times = [one for one in found if _speaks_of(*one, at)]
        assert len(times) == (is_told and not was_told)


def _offered(holder: Holder, at: int) -> None:
    event = PlacedEvent(("p", at), THERE, at, 10_000, 1)
    holder.receive(EventOffer("p", event, 1, ("a",)), now=at)


def _matches(holder: Holder, revision: int, *spans: CoverSpan) -> list[int]:
    out = holder.receive(Register("g", "s", revision, spans), now=100)
    return [one.message.event.published_at for one in out if isinstance(one.message, HolderMatch)]


def test_an_event_that_overtakes_the_clients_move_is_found_when_the_move_is_told() -> None:
    holder = Holder("h", 1, Timing())
    assert _matches(holder, 1, CoverSpan(("a",), HERE, 0, None)) == []
    _offered(holder, 20)
    _offered(holder, 40)

    moved = _matches(holder, 2, CoverSpan(("a",), HERE, 0, 30), CoverSpan(("a",), THERE, 30, None))

    assert moved == [40]


@pytest.mark.parametrize("since", [0, 10])
def test_after_moves_that_were_never_told_the_holder_looks_at_all_that_time(since: int) -> None:
    holder = Holder("h", 1, Timing())
    _matches(holder, 1, CoverSpan(("a",), HERE, 0, None))
    _offered(holder, 20)

    joined = CoverSpan(("a",), Rect(0.0, 0.0, 6.0, 1.0), since, 30)
    assert _matches(holder, 3, joined, CoverSpan(("a",), HERE, 30, None)) == [20]


def test_who_comes_back_with_another_cover_from_the_same_time_on_is_compared_anew() -> None:
    holder = Holder("h", 1, Timing())
    _matches(holder, 1, CoverSpan(("a",), HERE, 0, None))
    _offered(holder, 20)

    assert _matches(holder, 2, CoverSpan(("a",), Rect(0.0, 0.0, 6.0, 1.0), 0, None)) == [20]


def test_what_a_registration_said_before_is_not_looked_at_again() -> None:
    holder = Holder("h", 1, Timing())
    _matches(holder, 1, CoverSpan(("a",), HERE, 0, 30), CoverSpan(("a",), HERE, 30, None))
    _offered(holder, 20)
    wider = CoverSpan(("a",), Rect(0.0, 0.0, 6.0, 1.0), 0, 30)  # joined: it may cover too much

    assert _matches(holder, 2, wider, CoverSpan(("a",), HERE, 30, None)) == []
