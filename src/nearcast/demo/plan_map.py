"""The learned plan as a map for the page: who serves which area, and where people are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from nearcast.demo.city import EAST, NORTH, SOUTH, WEST, Place
from nearcast.locality import Leaf, Plan, Rect

_WIDTH = 640
_COLOURS = ("#4e79a7", "#e2963f", "#5fa15a", "#b06aa5")
_LON_PER_LAT = 0.79  # the length of a degree of longitude here, by that of a degree of latitude
_MARGIN = 0.0008
_FRAME = Rect(WEST - _MARGIN, SOUTH - _MARGIN, EAST + _MARGIN, NORTH + _MARGIN)


def plan_map(plan: Plan, names: Sequence[str], people: Mapping[str, Place]) -> str:
    """Return the part of the plan that the city lies in, as SVG; `names[n]` is broker n's node."""
    west, south, east, north = _FRAME
    scale = _WIDTH / (east - west)
    height = round(scale * (north - south) / _LON_PER_LAT)

    def at(lon: float, lat: float) -> tuple[float, float]:
        return scale * (lon - west), scale * (north - lat) / _LON_PER_LAT

    def drawn(rect: Rect) -> str:
        (x, y), (right, bottom) = at(rect.west, rect.north), at(rect.east, rect.south)
        return f'x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}"'

    shapes = [*_areas(plan, names, drawn), *_dots(people, at)]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="Map of the plan">{"".join(shapes)}</svg>{_legend(names)}'
    )


def _areas(plan: Plan, names: Sequence[str], drawn: Callable[[Rect], str]) -> Iterator[str]:
    for leaf in sorted(plan.leaves, key=lambda leaf: leaf.kind):  # q, then r above them
        broker = plan.broker_of(leaf.number)
        yield (
            f'<rect {drawn(leaf.rect)} fill="{_COLOURS[broker % len(_COLOURS)]}" {_style(leaf)}>'
            f"<title>{_name(names, broker)}, about {leaf.load} people</title></rect>"
        )


def _style(leaf: Leaf) -> str:
    if leaf.kind == "r":
        return 'fill-opacity=".6" stroke="#1c2733" stroke-width="1.5"'
    return 'fill-opacity=".35" stroke="#fff" stroke-width="1.5"'


def _dots(
    people: Mapping[str, Place], at: Callable[[float, float], tuple[float, float]]
) -> Iterator[str]:
    for name, place in people.items():
        x, y = at(*place)
        fill = "#fff" if name.startswith("walker") else "#1c2733"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="#1c2733"/>'


def _legend(names: Sequence[str]) -> str:
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, _COLOURS, strict=False)
    )
    return f'<p class="legend">Node: {keys}<span>● car or bus</span><span>○ walker</span></p>'


def _name(names: Sequence[str], broker: int) -> str:
    return escape(names[broker]) if broker < len(names) else f"broker {broker}"
