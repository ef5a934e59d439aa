"""How much wider than its area a subscription is registered, so that a few steps need no message.

A client that goes straight on needs room ahead and hardly any elsewhere: the same room then lasts
for a longer distance. A client that wanders needs some on each side.

      ┌───────────┐             ┌──────────────────┐
      │ ┌──────┐  │             │┌──────┐          │
      │ │client│  │             ││client│ ──►      │
      │ └──────┘  │             │└──────┘          │
      └───────────┘             └──────────────────┘
        wanders                   goes straight on
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import dist, hypot

from nearcast.locality.layout.rect import Rect

STEPS = 6
"""How many of the last steps determine the direction of a client."""
_AHEAD = 8 / 3  # times the slack: the room ahead of a client that goes straight on
_BESIDE = 1 / 3  # times the slack: the room around a client that goes straight on


def widened(areas: Sequence[Rect], slack: float) -> Rect:
    """Return the cover for the last of a subscription's areas, which come oldest first.

    `slack` is the room on each side of a client that wanders, has not moved, or has just moved
    farther than its own area extends; as a share of the longer side. Straightness is the net
    distance over the distance travelled, squared: 1 for a straight line, near 0 for a client that
    is back where the steps began. O(areas).
    """
    area = areas[-1]
    width, height = area.east - area.west, area.north - area.south
    room = slack * max(width, height)
    before = areas[-2] if len(areas) > 1 else area
    if (
        not slack
        or not width
        or not height
        or abs(area.west - before.west) > width
        or abs(area.south - before.south) > height
    ):
        return area.grown(room)
    x, y, straight = _direction(areas, width, height)
    ahead = _AHEAD * slack * straight
    there = _moved(area, ahead * x * width, ahead * y * height)
    return area.joined(there).grown(room * (1 - straight * (1 - _BESIDE)))


def _direction(areas: Sequence[Rect], width: float, height: float) -> tuple[float, float, float]:
    """Return the direction of travel as a unit vector (0 if there is none), and its straightness.

    Distances are in widths and heights: a degree of longitude is not one of latitude.
    """
    middles = [
        ((area.west + area.east) / (2 * width), (area.south + area.north) / (2 * height))
        for area in areas
    ]
    x, y = middles[-1][0] - middles[0][0], middles[-1][1] - middles[0][1]
    made_good = hypot(x, y)
    if not made_good:
        return 0.0, 0.0, 0.0
    way = sum(dist(a, b) for a, b in pairwise(middles))
    return x / made_good, y / made_good, min(1.0, made_good / way) ** 2


def _moved(area: Rect, x: float, y: float) -> Rect:
    return Rect(area.west + x, area.south + y, area.east + x, area.north + y)
