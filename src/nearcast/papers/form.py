"""The interface of all five experiments: points in, rows out, then claims, figures and tables.

The functions below the types are what the papers' `claims.py` share: selecting rows, the one
confidence interval, and drawing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Protocol, TypeAlias

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
    not count in its verdict. Nor does a verdict with a `reading`: that text says how something was
    read that the paper leaves open, other than in the claim's own verdict. `low` and `high` are
    the 95 % confidence interval, over seeds, of the quantity that `interval_of` names; they are NaN
    if only one seed was run.
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
    reading: str = ""

    @property
    def counts(self) -> bool:
        """Whether it counts in the verdict on its claim."""
        return not (self.ours or self.reading)

    def record(self) -> Row:
        """Return the row of `claims.json`."""
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        return {
            "id": self.id,
            "variant": self.variant,
            "ours": self.ours,
            "reading": self.reading,
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


_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean (Student's t); NaN for fewer than two values.

    >>> interval([2.0, 2.0]), interval([2.0])
    ((2.0, 2.0), (nan, nan))
    """
    finite = [value for value in values if math.isfinite(value)]
    freedom = len(finite) - 1
    if freedom < 1:
        return math.nan, math.nan
    factor = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96
    half = factor * stdev(finite) / math.sqrt(len(finite))
    return fmean(finite) - half, fmean(finite) + half


def is_above(values: Sequence[float], bound: float) -> bool:
    """Return whether the interval lies above a bound; where there is none, whether the mean does.

    >>> is_above([2.0, 2.1, 2.2], 1.0), is_above([0.5, 2.5], 1.0), is_above([1.5], 1.0)
    (True, False, True)
    """
    low, _ = interval(values)
    return (fmean(values) if math.isnan(low) else low) > bound


def judged(
    name: str,
    says: str,
    measured: str,
    holds: bool,
    rows: Sequence[Row],
    values: Sequence[float],
    interval_of: str,
    *,
    variant: str = "",
    over: Iterable[str] = (),
    ours: bool = False,
    reading: str = "",
) -> Claim:
    """Return a verdict by some rows, with the interval of `values` and the parameters `over`."""
    return Claim(
        name, variant, says, measured, interval_of, *interval(values), bool(holds),
        seeds_of(rows), varied(rows, over), ours, reading,
    )  # fmt: skip


def select(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of one kind."""
    return select(rows, kind=kind)


def mean_of(rows: Iterable[Row], column: str) -> float:
    """Return the mean of a column."""
    return fmean(float(row[column]) for row in rows)


def seeds_of(rows: Iterable[Row]) -> tuple[int, ...]:
    """Return the seeds of some rows, sorted."""
    return tuple(sorted({int(row["seed"]) for row in rows}))


def varied(rows: Iterable[Row], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the distinct values of some parameters in these rows."""
    kept = list(rows)
    return {name: sorted({row[name] for row in kept}) for name in names}


def drawn(
    name: str,
    caption: str,
    draw: Callable[..., object],
    *,
    axes: tuple[int, int] = (1, 1),
    size: tuple[float, float] = (10, 7.4),
    wide: bool = True,
) -> Figure:
    """Return a figure of so many rows and columns of axes, which `draw` is called with."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=size, layout="constrained")
    FigureCanvasSVG(picture)
    draw(*picture.subplots(*axes, squeeze=False).flat)
    svg = io.BytesIO()
    picture.savefig(svg, format="svg", metadata={"Date": None})
    return Figure(name, caption, svg.getvalue(), wide)


def plot_band(axes: Any, curve: Mapping[float, Sequence[float]], **style: Any) -> None:
    """Plot the mean of the values at each place, with a band for their interval."""
    places = sorted(curve)
    (line,) = axes.plot(places, [fmean(curve[x]) for x in places], **style)
    low, high = zip(*(interval(curve[x]) for x in places), strict=True)
    axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2)
