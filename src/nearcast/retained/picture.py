"""Pictures of policies: where they wait, where they send. Needs the extra `nearcast[research]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearcast.model.errors import EnvironmentProblem
from nearcast.retained.general import GeneralPolicy
from nearcast.retained.process import Actions, Weights, mean_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SEND_COLOUR, _WAIT_COLOUR = "#f4f1e8", "#2b6f8f"
_AGES, _LEAVE, _MESSAGE_COST = (1, 4, 10), 0.1, 5.0  # at which a general policy is drawn


def _figure(columns: int) -> tuple[Figure, list[Axes]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise EnvironmentProblem(
            "no matplotlib", expected="it for drawing", todo="pip install 'nearcast[research]'"
        ) from problem
    figure = Figure(figsize=(4.2 * columns, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, sharex=True, sharey=True)
    return figure, list(axes.ravel())


def _paint(axes: Axes, regions: Actions, extent: tuple[float, float, float, float]) -> None:
    from matplotlib.colors import ListedColormap

    axes.imshow(
        regions,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=extent,
        cmap=ListedColormap([_SEND_COLOUR, _WAIT_COLOUR]),
        vmin=0,
        vmax=1,
    )


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=_SEND_COLOUR, edgecolor="#888888", label="send now"),
        Patch(facecolor=_WAIT_COLOUR, label="wait"),
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)


def draw_tables(tables: Mapping[str, Actions], path: Path) -> None:
    """Draw each table's regions over the message's age (across) and the time deferred (up)."""
    figure, panels = _figure(len(tables))
    for axes, (title, actions) in zip(panels, tables.items(), strict=True):
        holds, ages = actions.shape
        _paint(axes, actions, (-0.5, ages - 0.5, -0.5, holds - 0.5))
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("age of the retained message, steps")
        axes.set_yticks(range(0, holds, 2))
        axes.set_xticks(range(0, ages, 5))
    panels[0].set_ylabel("held back, steps")
    _legend(figure)
    figure.savefig(path, dpi=120)


def draw_general(policy: GeneralPolicy, path: Path) -> None:
    """Draw where a general policy makes a subscriber wait: over λP (across) and ω (up), by age."""
    low, high = policy.trained.publish
    publishes = np.geomspace(low, high, 160)
    omegas = np.linspace(0.02, 0.98, 120)
    figure, panels = _figure(len(_AGES))
    for axes, age in zip(panels, _AGES, strict=True):
        regions = np.zeros((len(omegas), len(publishes)), dtype=np.uint8)
        for row, omega in enumerate(omegas):
            price = Weights(float(omega), _MESSAGE_COST).price
            for column, publish in enumerate(publishes):
                asked = price / mean_part(float(publish))  # as the broker does
                regions[row, column] = policy.waits(float(publish), _LEAVE, asked, 0, age)
        _paint(axes, regions, (float(np.log10(low)), float(np.log10(high)), 0.02, 0.98))
        ticks = [0.02, 0.1, 0.5, 2.0]
        axes.set_xticks([float(np.log10(tick)) for tick in ticks], [f"{t:g}" for t in ticks])
        axes.set_title(f"message {age} step{'' if age == 1 else 's'} old", fontsize=10)
        axes.set_xlabel("publishes per step (λP)")
    panels[0].set_ylabel("weight of timeliness (ω)")
    _legend(figure)
    figure.savefig(path, dpi=120)
