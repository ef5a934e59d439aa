"""How much wider than its area a subscription is registered, so that a few steps need no message.

Who goes straight on needs room in front and hardly any elsewhere: the same room then lasts for a
longer way. Who wanders about needs some on each side.

      ┌───────────┐             ┌──────────────────┐
      │  ┌─────┐  │             │┌─────┐           │
      │  │ who │  │             ││ who │ ──►       │
      │  └─────┘  │             │└─────┘           │
      └───────────┘             └──────────────────┘
        wanders                   goes straight on
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import dist, hypot

from nearcast.locality.rect import Rect

STEPS = 6
"""So many of the last steps say where somebody is going."""
_AHEAD = 8 / 3  # of the slack, in front of who goes straight on
_BESIDE = 1 / 3  # of the slack, around who goes straight on


def widened(areas: Sequence[Rect], slack: float) -> Rect:
    """Return a rectangle around the last of the areas that a subscription had, oldest first.

    `slack` is the room on each side for one that has not moved or wanders, as a share of the longer
    side. How straight the way was is the distance made good over the way made, squared: 1 for a
    straight line, near 0 for who is back where the steps began. O(areas).
    """
    area = areas[-1]
    width, height = area.east - area.west, area.north - area.south
    longer = max(width, height)
    if not slack or not width or not height:
        return area.grown(slack * longer)
    middles = [
        ((one.west + one.east) / (2 * width), (one.south + one.north) / (2 * height))
        for one in areas
    ]
    (from_x, from_y), (to_x, to_y) = middles[0], middles[-1]
    made_good = hypot(to_x - from_x, to_y - from_y)
    if not made_good:
        return area.grown(slack * longer)
    straight = min(1.0, made_good / sum(dist(a, b) for a, b in pairwise(middles))) ** 2
    ahead = _AHEAD * slack * straight / made_good
    there = _moved(area, ahead * (to_x - from_x) * width, ahead * (to_y - from_y) * height)
    return area.joined(there).grown(slack * longer * (1 - straight * (1 - _BESIDE)))


def _moved(area: Rect, x: float, y: float) -> Rect:
    return Rect(area.west + x, area.south + y, area.east + x, area.north + y)
