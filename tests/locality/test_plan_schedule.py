"""A schedule of plans, against a clock that goes minute by minute."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality import Plan, Rect, save_plan
from nearcast.locality.schedule.plan_schedule import (
    DAYS,
    PlanSchedule,
    ScheduledPlans,
    WeeklyChange,
    is_schedule,
    load_schedule,
    save_schedule,
    schedule_from_fields,
)
from nearcast.locality.schedule.week import (
    BLOCKS,
    DIVISIONS,
    block_at,
    block_changes,
    block_spans_ms,
    blocks_of,
    changes_of,
    class_name,
    time_zone,
)
from nearcast.model.errors import FileFormatError, UnknownNameError

MINUTE_MS = 60_000
ZONES = ("UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu")
# Clocks change on 29 March 2026 in Berlin, on 8 March in Los Angeles.
instants = st.integers(1_772_668_800, 1_775_088_000).map(lambda s: 1000 * s)  # 5 March to 2 April
hours = st.sampled_from([0, 60, 121, 360, 1439])  # minutes of the day, none in an hour that repeats


@st.composite
def schedules(draw: st.DrawFn) -> PlanSchedule:
    zone = ZoneInfo(draw(st.sampled_from(ZONES)))
    times = draw(st.sets(st.tuples(st.integers(0, 6), hours), min_size=1, max_size=6))
    changes = [
        WeeklyChange(frozenset([day]), minute, draw(st.sampled_from("abc")))
        for day, minute in sorted(times)
    ]
    return PlanSchedule(zone, tuple(changes))


def changes_by_the_minute(
    schedule: PlanSchedule, first_ms: int, last_ms: int
) -> list[tuple[int, str]]:
    """Look at the local clock every minute: a change is due when the clock first shows its time."""
    found, seen = [], set[tuple[object, int]]()
    at = first_ms // MINUTE_MS * MINUTE_MS
    before = datetime.fromtimestamp((at - MINUTE_MS) / 1000, schedule.zone).replace(tzinfo=None)
    while at <= last_ms:
        now = datetime.fromtimestamp(at / 1000, schedule.zone).replace(tzinfo=None)
        for change in schedule.changes:
            for day in (before.date(), now.date()):
                due = datetime.combine(day, datetime.min.time()) + timedelta(minutes=change.minute)
                key = (due, change.minute)
                if day.weekday() in change.days and before < due <= now and key not in seen:
                    seen.add(key)
                    found.append((at, change.plan))
        before = now
        at += MINUTE_MS
    return found


@given(schedules(), instants)
def test_the_plan_is_that_of_the_last_change_that_the_clock_has_shown(
    schedule: PlanSchedule, now_ms: int
) -> None:
    week_ms = 9 * 24 * 60 * MINUTE_MS
    expected = changes_by_the_minute(schedule, now_ms - week_ms, now_ms)
    gap_ms = 60 * MINUTE_MS  # a time that the clock skips in spring: within that hour
    found = schedule.due(now_ms, 0)
    assert found is not None
    assert abs(found.at_ms - expected[-1][0]) <= gap_ms
    if all(abs(found.at_ms - one[0]) > gap_ms for one in expected[:-1]):
        assert found.plan == expected[-1][1] == schedule.plan_at(now_ms)
    following = schedule.following(now_ms)
    assert following.at_ms > now_ms
    assert schedule.plan_at(following.at_ms) == following.plan


@given(schedules(), st.lists(instants, max_size=12))
def test_clocks_set_back_and_missed_changes_are_harmless(
    schedule: PlanSchedule, times_ms: list[int]
) -> None:
    """Whatever the clock does, changes are made in order, and each only once."""
    made_ms, made = 0, []
    for now_ms in times_ms:
        change = schedule.due(now_ms, made_ms)
        if change is not None:
            assert made_ms < change.at_ms <= now_ms
            assert change.plan == schedule.plan_at(now_ms)
            made_ms = change.at_ms
            made.append(change)
        assert schedule.due(now_ms, made_ms) is None
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    if times_ms:
        assert made_ms == schedule.due(max(times_ms), 0).at_ms  # type: ignore[union-attr]


@given(st.sampled_from(sorted(DIVISIONS)), st.sampled_from(ZONES), instants)
def test_a_division_as_a_schedule_has_the_class_of_each_block(
    name: str, zone: str, now_ms: int
) -> None:
    division = DIVISIONS[name]
    changes = [WeeklyChange(days, 60 * hour, str(one)) for days, hour, one in changes_of(division)]
    if name == "always":
        assert changes == []
        return
    schedule = PlanSchedule(ZoneInfo(zone), tuple(changes))
    assert schedule.plan_at(now_ms) == str(division[block_at(now_ms * 1000, schedule.zone)])


@given(instants, st.integers(1, 60 * 24 * 3), st.sampled_from(ZONES))
def test_spans_and_changes_of_blocks(first_ms: int, minutes: int, name: str) -> None:
    zone = ZoneInfo(name)
    last_ms = first_ms + minutes * MINUTE_MS
    step = np.arange(first_ms, last_ms, MINUTE_MS) * 1000
    blocks = blocks_of(step, zone)
    assert blocks.tolist() == [block_at(int(one), zone) for one in step]
    spans = block_spans_ms(first_ms * 1000, last_ms * 1000, zone)
    assert sum(spans) == pytest.approx(last_ms - first_ms, abs=BLOCKS)
    by_minute = np.bincount(blocks, minlength=BLOCKS) * MINUTE_MS
    assert np.abs(np.array(spans) - by_minute).max() <= minutes // 300 * MINUTE_MS + 2 * MINUTE_MS
    seen = [
        (a, b) for a, b in zip(blocks[:-1].tolist(), blocks[1:].tolist(), strict=True) if a != b
    ]
    found = block_changes(first_ms * 1000, last_ms * 1000, zone)
    assert abs(sum(found.values()) - len(seen)) <= 1  # the last minute may be the first of a block
    assert set(seen) <= set(found)


def test_names_of_classes() -> None:
    found = [class_name(DIVISIONS["days and hours"], one) for one in range(BLOCKS)]
    assert len(set(found)) == BLOCKS
    assert [class_name(DIVISIONS["days"], one) for one in (0, 1)] == ["weekdays", "weekend"]


# --- files ----------------------------------------------------------------------------------------

FIELDS = {
    "format": "nearcast-schedule",
    "format_version": 1,
    "time_zone": "Europe/Berlin",
    "changes": [
        {"days": ["mon", "tue", "wed", "thu", "fri"], "at": "06:30", "plan": "day.json"},
        {"days": list(DAYS), "at": "20:00", "plan": "night.json"},
    ],
}


def plan(side: float = 1.0) -> Plan:
    space = Rect(0.0, 0.0, side, side)
    return Plan(space, [("q", space, 3)], layout="q", depth=2, fanout=8, version=1)


def test_a_file_names_plan_files_beside_it(tmp_path: Path) -> None:
    schedule = schedule_from_fields(FIELDS, "here")
    assert schedule.as_fields() == FIELDS
    path = tmp_path / "schedule.json"
    save_schedule(schedule, path)
    assert is_schedule(path)
    with pytest.raises(FileFormatError, match=r"no plan file 'day.json' beside it"):
        load_schedule(path)
    for name in ("day.json", "night.json"):
        save_plan(plan(), tmp_path / name)
        assert not is_schedule(tmp_path / name)
    found = load_schedule(path)
    assert found.schedule == schedule
    assert found.plans == {"day.json": plan(), "night.json": plan()}
    again = ScheduledPlans.from_bytes(replace(found, made_ms=7).to_bytes())
    assert again is not None
    assert (again.schedule, again.plans, again.made_ms) == (schedule, found.plans, 7)
    assert ScheduledPlans.from_bytes(b"") is None
    save_plan(plan(2.0), tmp_path / "day.json")
    with pytest.raises(FileFormatError, match="different spaces"):
        load_schedule(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format_version": 2}, "of version 2"),
        ({"time_zone": "Europe/Nowhere"}, "Nowhere"),
        ({"changes": []}, "no change on any day"),
        ({"changes": [{"days": [], "at": "06:00", "plan": "a"}]}, "no change on any day"),
        ({"changes": [{"days": ["mo"], "at": "06:00", "plan": "a"}]}, "no schedule"),
        ({"changes": [{"days": ["mon"], "at": "24:00", "plan": "a"}]}, "at '24:00'"),
        ({"changes": [{"days": ["mon"], "at": "6:00", "plan": "a"}]}, "at '6:00'"),
        ({"changes": [{"days": ["mon"], "at": "06:00"}]}, "plan"),
        ({"changes": 2 * [{"days": ["mon"], "at": "06:00", "plan": "a"}]}, "mon 06:00"),
        ({"changes": "none"}, "no schedule"),
    ],
)
def test_what_is_no_schedule_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(FileFormatError, match=said):
        schedule_from_fields({**FIELDS, **change}, "here")


def test_damaged_bytes_and_unknown_zones() -> None:
    good = ScheduledPlans(
        schedule_from_fields(FIELDS, "here"), {"day.json": plan(), "night.json": plan()}
    ).to_bytes()
    fields = json.loads(good)
    del fields["plans"]["day.json"]
    for data in (b"[]", b"{", b'{"schedule": {}}', json.dumps(fields).encode()):
        with pytest.raises(FileFormatError):
            ScheduledPlans.from_bytes(data)
    for name in ("Nowhere", "../etc/passwd", ""):
        with pytest.raises(UnknownNameError, match="tz database"):
            time_zone(name)
