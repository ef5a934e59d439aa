"""The interface of all five experiments: points in, rows out, then claims, figures and tables."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from nearcast.papers.content_overlay.sweep import interval as student_interval

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One task: a kind of run, its parameters and a seed.

    `cost_s` is an estimate, for scheduling.
    """

    paper: int
    kind: str
    seed: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cost_s: float = 1.0

    def __str__(self) -> str:
        """Return the point as error messages name it."""
        settings = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"paper {self.paper}, {self.kind}, seed {self.seed} ({settings})"


@dataclass(frozen=True, slots=True)
class Claim:
    """A verdict. `variant` names the reading of the claim where there are several.

    `ours` marks our replacement for the paper's method; it is reported beside the claim and does
    not count in its verdict. `low` and `high` are the 95 % confidence interval, over seeds, of the
    quantity that `interval_of` names; they are NaN if only one seed was run.
    """

    id: str
    variant: str
    says: str
    measured: str
    interval_of: str
    low: float
    high: float
    holds: bool
    seeds: tuple[int, ...]
    parameters: Mapping[str, Any]
    ours: bool = False

    def record(self) -> Row:
        """Return the row of `claims.json`."""
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        return {
            "id": self.id,
            "variant": self.variant,
            "ours": self.ours,
            "paper_says": self.says,
            "measured": self.measured,
            "interval_of": self.interval_of,
            "confidence_interval": [self.low, self.high] if finite else None,
            "holds": self.holds,
            "seeds": list(self.seeds),
            "parameters": dict(self.parameters),
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture as SVG with its caption; two that are not `wide` stand side by side."""

    name: str
    caption: str
    svg: bytes
    wide: bool = True


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Measurements beyond the claims: a caption, headings, and formatted cells."""

    caption: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


class Experiment(Protocol):
    """The interface of a paper's `claims.py`, which implements it as a module."""

    def points(self, *, quick: bool) -> list[Point]:
        """Return all tasks."""

    def run(self, point: Point) -> list[Row]:
        """Run one task; deterministic in the point, except for measured processor times."""

    def claims(self, rows: Sequence[Row]) -> list[Claim]:
        """Judge every claim of the paper."""

    def figures(self, rows: Sequence[Row]) -> list[Figure]:
        """Draw the figures."""

    def tables(self, rows: Sequence[Row]) -> list[ReportTable]:
        """Return tables of measurements beyond the claims."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean; NaN for fewer than two values.

    >>> interval([2.0, 2.0]), interval([2.0])
    ((2.0, 2.0), (nan, nan))
    """
    finite = [value for value in values if math.isfinite(value)]
    return student_interval(finite) if len(finite) > 1 else (math.nan, math.nan)


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of one kind."""
    return [row for row in rows if row["kind"] == kind]


def seeds_of(rows: Iterable[Row]) -> tuple[int, ...]:
    """Return the seeds of some rows, sorted."""
    return tuple(sorted({int(row["seed"]) for row in rows}))


def varied(rows: Iterable[Row], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the distinct values of some parameters in these rows."""
    kept = list(rows)
    return {name: sorted({row[name] for row in kept}) for name in names}


def drawn(name: str, caption: str, draw: Callable[[Path], object], *, wide: bool = True) -> Figure:
    """Return the SVG file that `draw` writes, as a figure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.svg"
        draw(path)
        return Figure(name, caption, path.read_bytes(), wide)
