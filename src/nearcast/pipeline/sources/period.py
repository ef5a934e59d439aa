"""The part of an input that a run reads: from an instant on, or one day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nearcast.model.errors import MisuseError


@dataclass(frozen=True, slots=True)
class Period:
    """From `begin`, until before `end`; None is open. A closed period replaces its rows."""

    begin: datetime | None = None
    end: datetime | None = None

    @classmethod
    def of(cls, since: str, day: str, timezone: str) -> Period:
        """Return the period of `--since` or `--date`, in the time zone of the call.

        >>> Period.of("", "2026-11-17", "Europe/Zurich").begin.isoformat()
        '2026-11-16T23:00:00+00:00'
        """
        if since and day:
            raise MisuseError("--since and --date", where="ingest", expected="one of them")
        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise MisuseError(
                repr(timezone), where="--timezone", expected="a name such as Europe/Berlin"
            ) from None
        if day:
            first = _parsed(day, "--date", zone, whole_day=True)
            return cls(first.astimezone(UTC), _next_day(first).astimezone(UTC))
        return cls(_parsed(since, "--since", zone).astimezone(UTC) if since else None)

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.begin is None and self.end is None

    @property
    def replaces(self) -> str | None:
        """The condition on `t` for the rows that a run replaces; None: all rows of the table."""
        return None if self.end is None else self.condition("t")

    def condition(self, column: str) -> str:
        """Return the period as a condition of SQL on a column of instants."""
        parts = []
        if self.begin is not None:
            parts.append(f"{column} >= TIMESTAMP '{self.begin:%Y-%m-%d %H:%M:%S.%f} UTC'")
        if self.end is not None:
            parts.append(f"{column} < TIMESTAMP '{self.end:%Y-%m-%d %H:%M:%S.%f} UTC'")
        return " AND ".join(parts) or "true"


def _parsed(text: str, option: str, zone: ZoneInfo, *, whole_day: bool = False) -> datetime:
    try:
        if whole_day:
            return datetime.combine(date.fromisoformat(text), time(), zone)
        found = datetime.fromisoformat(text)
    except ValueError:
        expected = "a day such as 2026-11-17" + ("" if whole_day else ", or 2026-11-17T06:00")
        raise MisuseError(repr(text), where=option, expected=expected) from None
    return found if found.tzinfo else found.replace(tzinfo=zone)


def _next_day(first: datetime) -> datetime:
    return datetime.combine(first.date() + timedelta(days=1), time(), first.tzinfo)
