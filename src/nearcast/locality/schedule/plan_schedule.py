"""A schedule of plans: which plan is in force at which hours of which days, and when it changes.

The file names plan files beside it:

    {"format": "nearcast-schedule", "format_version": 1, "time_zone": "Europe/Berlin",
     "changes": [{"days": ["mon", "tue"], "at": "06:00", "plan": "plan-morning.json"}, …]}

A cluster remembers the instant of the last change that it made. A change is due if its instant is
later than that and has come. So a clock that is set back changes nothing, and of changes that were
missed only the last one is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.planfile import plan_from_json, plan_to_json
from nearcast.locality.schedule.week import time_zone
from nearcast.model.errors import FileFormatError, NearcastError, UnknownNameError

FORMAT, FORMAT_VERSION = "nearcast-schedule", 1
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEK = timedelta(days=8)  # a day more, for the hours around now
_DAY_MINUTES = 24 * 60


class ScheduledChange(NamedTuple):
    """At an instant, a plan comes into force."""

    at_ms: int
    plan: str


@dataclass(frozen=True, slots=True)
class WeeklyChange:
    """On some days of the week (Monday is 0), at a minute of the day, a plan comes into force."""

    days: frozenset[int]
    minute: int
    plan: str


@dataclass(frozen=True, slots=True)
class PlanSchedule:
    """Changes that repeat every week, by the clock of a time zone."""

    zone: ZoneInfo
    changes: tuple[WeeklyChange, ...]

    def due(self, now_ms: int, made_ms: int) -> ScheduledChange | None:
        """Return the change to make now; `made_ms` is the instant of the last one made.

        None if nothing is due: the change for this hour is made, or the clock was set back.
        """
        last = max(
            (change for change in self._around(now_ms) if change.at_ms <= now_ms), default=None
        )
        return last if last is not None and last.at_ms > made_ms else None

    def following(self, now_ms: int) -> ScheduledChange:
        """Return the next change after an instant."""
        return min(change for change in self._around(now_ms) if change.at_ms > now_ms)

    def plan_at(self, now_ms: int) -> str:
        """Return the name of the plan that is in force at an instant."""
        found = self.due(now_ms, -1 << 62)
        assert found is not None  # every schedule has a change in each week
        return found.plan

    def local_time(self, at_ms: int) -> str:
        """Return an instant by the clock of the time zone, for people."""
        return (
            f"{datetime.fromtimestamp(at_ms / 1000, self.zone):%a %Y-%m-%d %H:%M} {self.zone.key}"
        )

    def _around(self, now_ms: int) -> Iterator[ScheduledChange]:
        """Yield the changes of the weeks before and after an instant."""
        today = datetime.fromtimestamp(now_ms / 1000, self.zone).date()
        day, last = today - _WEEK, today + _WEEK
        while day <= last:
            for change in self.changes:
                if day.weekday() in change.days:
                    yield ScheduledChange(self._instant_ms(day, change.minute), change.plan)
            day += timedelta(days=1)

    def _instant_ms(self, day: date, minute: int) -> int:
        """Return the instant of a local time; of an hour that occurs twice, the first."""
        local = datetime.combine(day, time(minute // 60, minute % 60), self.zone)
        return round(local.timestamp() * 1000)

    def as_fields(self) -> dict[str, Any]:
        """Return the schedule as it stands in a file."""
        changes = [
            {
                "days": [DAYS[day] for day in sorted(change.days)],
                "at": f"{change.minute // 60:02}:{change.minute % 60:02}",
                "plan": change.plan,
            }
            for change in self.changes
        ]
        return {
            "format": FORMAT, "format_version": FORMAT_VERSION,
            "time_zone": self.zone.key, "changes": changes,
        }  # fmt: skip


def schedule_from_fields(fields: Any, where: str) -> PlanSchedule:
    """Return a schedule from the fields of a file; anything else is a FileFormatError."""
    try:
        if fields["format"] != FORMAT or fields["format_version"] != FORMAT_VERSION:
            raise FileFormatError(
                f"{fields['format']!r} of version {fields['format_version']!r}",
                where=where,
                expected=f"{FORMAT!r} of version {FORMAT_VERSION}",
            )
        zone = time_zone(str(fields["time_zone"]))
        changes = tuple(_change(one) for one in fields["changes"])
    except UnknownNameError as problem:
        raise FileFormatError(str(problem), where=where) from None
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise FileFormatError(
            f"no schedule ({problem!r})", where=where, expected="time_zone and changes"
        ) from None
    if not any(change.days for change in changes):
        raise FileFormatError("no change on any day", where=where, expected="one or more")
    _check_clashes(changes, where)
    return PlanSchedule(zone, changes)


def _change(fields: Mapping[str, Any]) -> WeeklyChange:
    hour, _, minute = str(fields["at"]).partition(":")
    at = 60 * int(hour) + int(minute)
    if not (len(fields["at"]) == 5 and 0 <= at < _DAY_MINUTES and int(minute) < 60):
        raise ValueError(f"at {fields['at']!r}")
    return WeeklyChange(frozenset(DAYS.index(day) for day in fields["days"]), at, fields["plan"])


def _check_clashes(changes: Sequence[WeeklyChange], where: str) -> None:
    """Raise if two changes are due at the same time of the same day."""
    seen = set[tuple[int, int]]()
    for change in changes:
        for day in change.days:
            if (day, change.minute) in seen:
                at = f"{DAYS[day]} {change.minute // 60:02}:{change.minute % 60:02}"
                raise FileFormatError(f"two changes at {at}", where=where, expected="one")
            seen.add((day, change.minute))


# --- with its plans -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledPlans:
    """A schedule with its plans by name, and the instant of the last change that was made."""

    schedule: PlanSchedule
    plans: dict[str, Plan]
    made_ms: int = 0

    def __post_init__(self) -> None:
        missing = sorted({one.plan for one in self.schedule.changes} - self.plans.keys())
        if missing:
            raise FileFormatError(f"no plan {', '.join(missing)}", where="schedule")
        if len({plan.space for plan in self.plans.values()}) > 1:
            raise FileFormatError("plans of different spaces", where="schedule", expected="one")

    def to_bytes(self) -> bytes:
        """Return all of it as JSON."""
        plans = {name: json.loads(plan_to_json(plan)) for name, plan in self.plans.items()}
        fields = {"schedule": self.schedule.as_fields(), "plans": plans, "made_ms": self.made_ms}
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "schedule") -> ScheduledPlans | None:
        """Return what `to_bytes` wrote; None for no bytes: the schedule was ended."""
        if not data:
            return None
        try:
            fields = json.loads(data)
            made_ms, plans = int(fields["made_ms"]), dict(fields["plans"])
            schedule = schedule_from_fields(fields["schedule"], where)
        except (ValueError, KeyError, TypeError) as problem:
            raise FileFormatError(
                f"no schedule with its plans ({problem!r})", where=where
            ) from None
        named = {name: plan_from_json(json.dumps(one), where) for name, one in plans.items()}
        return cls(schedule, named, made_ms)


def is_schedule(path: Path) -> bool:
    """Return whether a file is a schedule; a file that is no JSON is none."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["format"] == FORMAT)
    except (ValueError, KeyError, TypeError):
        return False


def load_schedule(path: Path) -> ScheduledPlans:
    """Read a schedule and the plan files that it names, which lie beside it."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise FileFormatError(f"no JSON ({problem})", where=str(path)) from None
    schedule = schedule_from_fields(fields, str(path))
    plans = {}
    for name in dict.fromkeys(change.plan for change in schedule.changes):
        beside = path.parent / name
        if Path(name).name != name or not beside.is_file():
            raise FileFormatError(
                f"no plan file {name!r} beside it", where=str(path), expected="the name of one"
            )
        plans[name] = plan_from_json(beside.read_text(encoding="utf-8"), str(beside))
    try:
        return ScheduledPlans(schedule, plans)
    except NearcastError as problem:
        raise FileFormatError(str(problem), where=str(path)) from None


def save_schedule(schedule: PlanSchedule, path: Path) -> None:
    """Write a schedule, replacing the file atomically."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(schedule.as_fields(), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
