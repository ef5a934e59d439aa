"""The picture of `regions`: where time is spent, and the slow regions on top."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from nearcast.locality.layout.slow_regions import CellGrid, SlowRegion
from nearcast.model.errors import EnvironmentProblem

_MOST_CELLS_DRAWN = 200_000


def draw_regions(
    cells: DataFrame, grid: CellGrid, regions: Sequence[SlowRegion], path: Path
) -> None:
    """Draw the time spent per cell with the slow regions on top, and save the picture."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise EnvironmentProblem(
            "pictures need Matplotlib", todo="pip install 'nearcast[spark]'"
        ) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    busiest = (
        cells.groupBy("column", "row")
        .agg((F.sum("dwell_ms") / 3.6e6).alias("hours"))
        .where("hours > 0")
        .orderBy(F.desc("hours"))
        .limit(_MOST_CELLS_DRAWN)
        .toPandas()
    )
    lon = (busiest["column"].to_numpy() + 0.5) * grid.lon_step
    lat = (busiest["row"].to_numpy() + 0.5) * grid.lat_step
    hours = busiest["hours"].to_numpy()
    west, east, south, north = _busy_part(lon, lat, hours)

    figure, axes = plt.subplots(figsize=(9, 9), layout="constrained")
    size = (figure.get_size_inches()[0] * 60 / max(1.0, (east - west) / grid.lon_step)) ** 2
    dots = axes.scatter(
        lon, lat, c=hours, s=max(1.0, size), marker="s", cmap="Blues", norm=LogNorm(vmin=0.05)
    )
    figure.colorbar(dots, label="hours spent in a cell", shrink=0.7)
    for region in regions:
        left, bottom, right, top = region.bounds
        axes.add_patch(
            Rectangle(
                (left, bottom), right - left, top - bottom, fill=False, edgecolor="#c05621", lw=2
            )
        )
    axes.set(
        xlim=(west, east),
        ylim=(south, north),
        xlabel="longitude",
        ylabel="latitude",
        title=f"{len(regions)} slow moving regions (cells of {grid.cell_m:g} m)",
        aspect=grid.lon_step / grid.lat_step,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _busy_part(
    lon: np.ndarray, lat: np.ndarray, hours: np.ndarray
) -> tuple[float, float, float, float]:
    """Return west, east, south, north around 99 % of the time spent; outliers are cut off."""

    def ends(values: np.ndarray) -> tuple[float, float]:
        order = np.argsort(values)
        share = np.cumsum(hours[order]) / hours.sum()
        low = values[order][int(np.searchsorted(share, 0.005))]
        high = values[order][min(int(np.searchsorted(share, 0.995)), len(values) - 1)]
        margin = 0.05 * (high - low) + 1e-3
        return float(low - margin), float(high + margin)

    return (*ends(lon), *ends(lat))
