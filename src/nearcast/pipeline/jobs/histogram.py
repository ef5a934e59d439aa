"""`histogram`: counts events into a density, by which the overlay elects parents (paper 3).

Up to four attributes are counted jointly in a grid; with more, each attribute is counted alone.
Both give the `density` of the overlay's settings (`nearcast/overlay/density_file.py`). As a file:

    {"format": "nearcast-density", "format_version": 1,
     "space": "shops", "attributes": ["price", "kind"],
     "lows": [0.0, 0.0], "highs": [100.0, 1.0], "events": 12345,
     "kind": "histogram", "shape": [64, 2], "counts": [...]}       row by row, or
     "kind": "marginals", "samples": [[...], ...]}                 sorted values of each attribute

An event that lacks a value may be anywhere along that attribute: it is spread over all its cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog.stores import is_url
from nearcast.model import Space
from nearcast.model.errors import FileFormatError, MisuseError, NearcastError
from nearcast.overlay import Density, Extent, GridDensity, MarginalDensity
from nearcast.overlay.density_file import FORMAT, FORMAT_VERSION, content_of
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.match import points_of
from nearcast.pipeline.sources.column_types import check_event_columns
from nearcast.pipeline.sources.files import read_all
from nearcast.pipeline.sources.input_checks import check_there
from nearcast.pipeline.tables.output_files import local_file, output_folder
from nearcast.pipeline.tables.worker_writes import Batches, gathered

MOST_JOINT = 4
_CELLS = {1: 4096, 2: 64, 3: 32, 4: 16}  # cells per attribute, by the number of attributes
_FINE_CELLS = 4096  # per attribute that is counted alone
_SAMPLES = 1_000
_ROWS_AT_ONCE = 65_536
_COUNTED = "axis int, cell bigint, count bigint"


@dataclass(frozen=True, slots=True)
class EventHistogram:
    """The counted events of a space: a grid of counts, or sorted samples of each attribute."""

    space: str
    attributes: tuple[str, ...]
    extent: Extent
    events: int
    counts: np.ndarray | None
    samples: np.ndarray | None  # a row per sample, a column per attribute, each sorted

    def density(self) -> Density:
        """Return the density that elections use."""
        if self.counts is not None:
            return GridDensity(self.extent, self.counts)
        assert self.samples is not None
        return MarginalDensity(self.extent, self.samples)

    def distance(self, other: EventHistogram) -> float | None:
        """Return the share of events that lie elsewhere, from 0 to 1; None if not comparable.

        This is the total variation distance; with marginals, the largest over the attributes.
        """
        if (self.extent, self.attributes) != (other.extent, other.attributes):
            return None
        if self.counts is not None and other.counts is not None:
            return _variation(self.counts, other.counts)
        if self.samples is None or other.samples is None:
            return None
        return max(
            _variation(*(np.histogram(column, 64, ends)[0] for column in pair))
            for *pair, ends in zip(
                self.samples.T, other.samples.T,
                zip(self.extent.lows, self.extent.highs, strict=True), strict=True,
            )
        )  # fmt: skip

    def summary(self, last: EventHistogram | None) -> dict[str, Any]:
        """Return size and kind, and the distance from the last histogram, for JSON."""
        moved = None if last is None else self.distance(last)
        return {
            "events": self.events,
            "kind": "histogram" if self.counts is not None else "marginals",
            "moved_share": None if moved is None else round(moved, 4),
        }


@dataclass(frozen=True, slots=True)
class HistogramJob:
    """Counts a table of events into the density of their space."""

    name: ClassVar[str] = "histogram"
    events: str
    output: str
    space: Space

    @property
    def path(self) -> Path:
        """The file of the histogram, which also has the last one."""
        return Path(self.output) / f"histogram-{self.space.name}.json"

    @property
    def place(self) -> str:
        """The path or URL of that file."""
        return f"{self.output}/{self.path.name}" if is_url(self.output) else str(self.path)

    def _last(self) -> EventHistogram | None:
        with local_file(self.place) as file:
            return load_histogram(file) if file.exists() else None

    def _save(self, found: EventHistogram) -> None:
        with output_folder(self.output) as folder:
            save_histogram(found, folder / self.path.name)

    def check(self) -> None:
        """Check that the last histogram can be read, and that the table exists."""
        if not is_url(self.output):
            self._last()
        check_there(self.events)

    def run(self, spark: SparkSession) -> JobResult:
        """Return the counts; `save` writes the file."""
        found = count_events(read_all(spark, self.events), self.space)
        fields = found.summary(self._last())
        line = f"{found.space}: {found.events:,} events ({fields['kind']})"
        if fields["moved_share"] is not None:
            line += f"; {fields['moved_share']:.1%} of them lie elsewhere than last time"
        return JobResult(
            fields,
            [line, f"Histogram: {self.place}"],
            {"file": self.place},
            save=partial(self._save, found),
        )


def _variation(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape:
        return 1.0
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


def extent_of(space: Space) -> Extent:
    """Return the ranges of a space's attributes; a category is its index ± ½."""
    return Extent(space.extent.lows, space.extent.highs)


def count_events(events: DataFrame, space: Space) -> EventHistogram:
    """Count a space's events; one pass, and the collected rows have the size of the histogram."""
    check_event_columns(events, space)
    extent, shape = extent_of(space), shape_of(space)
    is_joint = space.dimensions <= MOST_JOINT
    rows = cells_of_events(events, space, is_joint=is_joint).collect()
    total = sum(row["count"] for row in rows if row["axis"] <= 0)
    if not total:
        raise MisuseError(
            f"no events of the space '{space.name}'",
            todo="Give another --input; nothing was changed",
        )
    names = tuple(each.name for each in space.attributes)
    if is_joint:
        counts = spread({row["cell"]: row["count"] for row in rows}, shape)
        return EventHistogram(space.name, names, extent, total, counts, None)
    columns = []
    for axis, size in enumerate(shape):
        found = {row["cell"]: row["count"] for row in rows if row["axis"] == axis}
        counts = spread(found, (size,))
        columns.append(quantiles(counts, extent.lows[axis], extent.highs[axis]))
    return EventHistogram(space.name, names, extent, total, None, np.stack(columns, axis=1))


def shape_of(space: Space) -> tuple[int, ...]:
    """Return the number of cells per attribute; a category has one per value."""
    most = _CELLS.get(space.dimensions, _FINE_CELLS)
    return tuple(
        min(most, len(each.categories)) if each.is_category else most for each in space.attributes
    )


def cells_of_events(events: DataFrame, space: Space, *, is_joint: bool) -> DataFrame:
    """Return the number of events per cell; the same under any partitioning.

    Counted jointly, `axis` is -1 and `cell` is a mixed-radix number with one digit per attribute,
    the first attribute highest; a digit is 0 for a missing value, else the cell counted from 1.
    Counted alone, `axis` is the attribute's index. One shuffle, of partial counts.
    """
    names = [each.name for each in space.attributes if each.name in events.columns]
    counted = events.select(*names).mapInArrow(_counter(space, is_joint=is_joint), _COUNTED)
    return counted.groupBy("axis", "cell").agg(F.sum("count").alias("count"))


def _counter(space: Space, *, is_joint: bool) -> Callable[[Batches], Batches]:
    shape, extent = shape_of(space), extent_of(space)

    def count(batches: Batches) -> Batches:
        for batch in gathered(batches, _ROWS_AT_ONCE):
            places = places_of(points_of(batch, space), extent, shape)
            if is_joint:
                cell = np.zeros(len(places), np.int64)
                for axis, size in enumerate(shape):
                    cell = cell * (size + 1) + places[:, axis]
                yield _counts(-1, cell)
            else:
                for axis in range(len(shape)):
                    yield _counts(axis, places[:, axis])

    return count


def _counts(axis: int, cells: np.ndarray) -> pa.RecordBatch:
    found, counts = np.unique(cells, return_counts=True)
    return pa.RecordBatch.from_pydict(
        {
            "axis": pa.array(np.full(len(found), axis, np.int32)),
            "cell": pa.array(found.astype(np.int64)),
            "count": pa.array(counts.astype(np.int64)),
        }
    )


def places_of(points: np.ndarray, extent: Extent, shape: Sequence[int]) -> np.ndarray:
    """Return the cell of each value, counted from 1; 0 where the value is missing."""
    lows, highs = np.array(extent.lows), np.array(extent.highs)
    sizes = np.array(shape)
    known = np.isfinite(points) & (points >= lows) & (points <= highs)
    scaled = np.where(known, (points - lows) / (highs - lows) * sizes, 0.0)
    return np.where(known, np.minimum(scaled.astype(np.int64), sizes - 1) + 1, 0)


def spread(found: dict[int, int], shape: Sequence[int]) -> np.ndarray:
    """Return the counts as an array.

    An event that lacks a value is spread evenly along that axis.
    """
    whole = np.zeros(int(np.prod([size + 1 for size in shape])))
    for cell, count in found.items():
        whole[cell] += count
    table = whole.reshape([size + 1 for size in shape])
    for axis, size in enumerate(shape):
        missing, rest = np.split(table, [1], axis=axis)
        table = rest + missing / size
    return table


def quantiles(counts: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return sorted sample values, distributed over the cells as the events are."""
    share = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    borders = np.linspace(low, high, len(counts) + 1)
    wanted = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    return np.interp(wanted, share, borders)


# --- as a file ------------------------------------------------------------------------------------


def save_histogram(histogram: EventHistogram, path: Path) -> None:
    """Write a histogram; the file is replaced atomically."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "space": histogram.space,
        "attributes": list(histogram.attributes),
        "lows": list(histogram.extent.lows),
        "highs": list(histogram.extent.highs),
        "events": histogram.events,
    }
    if histogram.counts is not None:
        content |= {
            "kind": "histogram",
            "shape": list(histogram.counts.shape),
            "counts": histogram.counts.ravel().tolist(),
        }
    else:
        assert histogram.samples is not None
        content |= {"kind": "marginals", "samples": histogram.samples.T.tolist()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content), encoding="utf-8")
    partial.replace(path)


def load_histogram(path: Path) -> EventHistogram:
    """Read a histogram; raise FileFormatError for a damaged file or another version."""
    where = str(path)
    kept = "It stays as it is. To start again without it, move it away"
    content = content_of(path.read_text(encoding="utf-8"), where=where, todo=kept)
    try:
        return _histogram_of(content)
    except (KeyError, TypeError, ValueError, NearcastError) as problem:
        raise FileFormatError(
            f"a damaged file ({problem})", where=where, expected=f"a whole {FORMAT} file"
        ) from None


def _histogram_of(content: dict[str, Any]) -> EventHistogram:
    is_grid = content["kind"] == "histogram"
    counts = np.array(content["counts"], float).reshape(content["shape"]) if is_grid else None
    samples = None if is_grid else np.array(content["samples"], float).T
    found = EventHistogram(
        str(content["space"]),
        tuple(content["attributes"]),
        Extent(tuple(content["lows"]), tuple(content["highs"])),
        int(content["events"]),
        counts,
        samples,
    )
    found.density()  # validates the remaining fields
    return found
