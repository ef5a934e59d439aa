"""A plan as a picture (SVG or PNG) and as GeoJSON.

Leaves are coloured by kind (R leaves warm, Q leaves cool) and shaded by load; with an assignment
each leaf carries its broker's number. Matplotlib is loaded only when a picture is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearcast.locality.layout.plan import Leaf, Plan
from nearcast.locality.layout.rect import Rect
from nearcast.model.errors import EnvironmentProblem, MisuseError

_MOST_LABELS = 80
_KINDS = (
    ("q", "Blues", "#33507a", "users of a Q leaf"),
    ("r", "Oranges", "#b5440b", "users of an R leaf"),
)


def plan_geojson(plan: Plan, regions: Sequence[Rect] = ()) -> str:
    """Return a FeatureCollection: a polygon per leaf (kind, key, load, broker) and slow region."""
    features = [
        _feature(
            leaf.rect,
            {
                "key": leaf.key,
                "kind": "R leaf" if leaf.kind == "r" else "Q leaf",
                "load": leaf.load,
                "broker": plan.broker_of(leaf.number),
                "plan": plan.version,
            },
        )
        for leaf in plan.leaves
    ]
    features += [
        _feature(Rect(*region), {"kind": "slow region", "number": number})
        for number, region in enumerate(regions)
    ]
    return json.dumps({"type": "FeatureCollection", "features": features})


def _feature(rect: Rect, properties: dict[str, Any]) -> dict[str, Any]:
    west, south, east, north = rect
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "type": "Feature",
        "properties": properties,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }


def draw_plan(
    plan: Plan, path: Path, *, regions: Sequence[Rect] = (), title: str | None = None
) -> None:
    """Draw a plan to an .svg or .png file."""
    figure = _figure(path, (9, 7.6))
    axes = figure.subplots()
    _draw_leaves(axes, figure, plan)
    _draw_regions(axes, regions)
    _draw_brokers(axes, plan)
    axes.set_title(title or _title(plan), loc="left", fontsize=11)
    _save(figure, path)


def draw_layouts(plans: Mapping[Any, Plan], path: Path) -> None:
    """Draw layouts of one space side by side, to an .svg or .png file."""
    figure = _figure(path, (11, 3.0 * len(plans)))
    columns = figure.subplots((len(plans) + 1) // 2, 2, squeeze=False).ravel()
    most = max(leaf.load for plan in plans.values() for leaf in plan.leaves)
    for axes, (name, plan) in zip(columns, plans.items(), strict=False):
        _draw_leaves(axes, None, plan, most)
        used = sum(leaf.load > 0 for leaf in plan.leaves)
        heaviest = max(leaf.load for leaf in plan.leaves)
        title = f"{name}: {used} leaves with users, at most {heaviest:,} users in one"
        axes.set_title(title, loc="left", fontsize=10)
    for axes in columns[len(plans) :]:
        axes.set_axis_off()
    _save(figure, path)


def _figure(path: Path, size: tuple[float, float]) -> Any:
    if path.suffix not in (".svg", ".png"):
        raise MisuseError(
            path.name, where="picture of a plan", expected="a name ending .svg or .png"
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentProblem(
            "Matplotlib is not installed", todo="Install nearcast[research]"
        ) from None
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    """Write a figure; a fixed salt and no date: the same plan gives the same file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "nearcast", "svg.fonttype": "none"}):
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=130, metadata=metadata)


def _title(plan: Plan) -> str:
    q_count = len(plan.leaves) - plan.r_count
    brokers = "one broker per leaf" if plan.brokers is None else f"{len(set(plan.brokers))} brokers"
    return f"Plan {plan.version}: {plan.r_count} R leaves, {q_count} Q leaves, {brokers}"


def _draw_leaves(axes: Any, figure: Any | None, plan: Plan, most: int | None = None) -> None:
    """Draw both kinds, each with its own colours: R leaves may carry many times the load.

    With a figure each kind has a colour bar; `most` is the load of the darkest leaf, by default the
    heaviest of its kind.
    """
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    for kind, colours, edge, label in _KINDS:
        leaves = [leaf for leaf in plan.leaves if leaf.kind == kind]
        if not leaves:
            continue
        rects = _rects(leaves)
        patches = [Rectangle((r.west, r.south), r.east - r.west, r.north - r.south) for r in rects]
        darkest = most or max(leaf.load for leaf in leaves)
        norm = Normalize(0, 1.4 * max(1, darkest))  # never too dark to read
        shades = PatchCollection(patches, cmap=colours, norm=norm, linewidth=0.7, edgecolor=edge)
        shades.set_array(np.array([leaf.load for leaf in leaves], float))
        axes.add_collection(shades)
        if figure is not None:
            figure.colorbar(shades, ax=axes, label=label, shrink=0.6, pad=0.01, aspect=30)
    axes.set_xlim(plan.space.west, plan.space.east)
    axes.set_ylim(plan.space.south, plan.space.north)
    axes.set_xlabel("x (longitude)")
    axes.set_ylabel("y (latitude)")
    axes.ticklabel_format(useOffset=False)


def _rects(leaves: Sequence[Leaf]) -> list[Rect]:
    return [leaf.rect for leaf in leaves]


def _draw_regions(axes: Any, regions: Sequence[Rect]) -> None:
    from matplotlib.patches import Rectangle

    for number, region in enumerate(regions):
        west, south, east, north = region
        axes.add_patch(
            Rectangle(
                (west, south),
                east - west,
                north - south,
                fill=False,
                hatch="////",
                edgecolor="#7a1f00",
                linewidth=1.2,
                label=None if number else "slow regions",
            )
        )
    if regions:
        axes.legend(loc="upper right", fontsize=8)


def _draw_brokers(axes: Any, plan: Plan) -> None:
    """Write each leaf's broker (or its key, when there is no assignment) if there is room."""
    if len(plan.leaves) > _MOST_LABELS:
        return
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]
    for leaf in plan.leaves:
        text = leaf.key if plan.brokers is None else str(plan.brokers[leaf.number])
        west, south, east, north = leaf.rect
        if leaf.kind == "q":  # in the corner, where fewer R leaves lie over it
            place, sides = (west, south), {"ha": "left", "va": "bottom"}
        else:
            place, sides = (
                ((west + east) / 2, (south + north) / 2),
                {"ha": "center", "va": "center"},
            )
        axes.annotate(
            text, place, xytext=(2, 2) if leaf.kind == "q" else (0, 0), fontsize=7,
            textcoords="offset points", clip_on=True, path_effects=halo, **sides,
        )  # fmt: skip
