"""A plan of quadrants only, to compare the learned plan with: the same record, people, brokers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from nearcast.demo.city import Place
from nearcast.locality import CellCounts, Plan, Rect
from nearcast.locality.layout.balancing import assign_by_crossings, crossings
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.movement import Movement

_DEPTH = 9  # as the pipeline's own, as is how many people a leaf may have, and how far events reach
_EVENT_M = 300.0
_M_PER_DEGREE = 111_320.0


def quadrant_plan(
    space: Rect, tracks: Iterable[Sequence[Place]], leaves: int, brokers: int, step_s: float = 1.0
) -> Plan:
    """Return a Q plan for the movement in `tracks`, which have a place every `step_s` seconds.

    A leaf may have as many people as in a plan that `nearcast pipeline plan --leaves` learns from
    the same movement, and the leaves are assigned to the brokers by the same method: brokers have
    about the same load, and few paths and few events concern two of them.
    """
    movement = movement_of(space, tracks, step_s)
    most_ms = max(1, math.floor(2 * movement.users / leaves * movement.span_ms))
    nobody = np.zeros_like(movement.time_ms)
    counts = CellCounts(_DEPTH, movement.time_ms, nobody, np.zeros(0, np.int64))
    plan = Plan.build(space, [], counts, layout="q", capacity=most_ms)
    owners = plan_owners(plan, _DEPTH)
    times_ms = movement.time_by_owner(owners, len(plan.leaves))
    users = [round(time_ms / movement.span_ms) for time_ms in times_ms]
    reach = reach_in(space)
    parts = assign_by_crossings(plan, movement, owners, reach, brokers).brokers
    named = [(leaf.key, leaf.rect, users[leaf.number]) for leaf in plan.leaves]
    return plan.remade(named, parts, 1).with_flows(crossings(movement, owners, reach))


def movement_of(space: Rect, tracks: Iterable[Sequence[Place]], step_s: float) -> Movement:
    """Return the movement of tracks that have a place every `step_s` seconds."""
    paths = [np.array(track) for track in tracks]
    users = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    times_s = np.concatenate([np.arange(len(path)) * step_s for path in paths])
    places = np.concatenate(paths)
    return Movement.from_tracks(space, users, times_s, places[:, 0], places[:, 1], _DEPTH)


def reach_in(space: Rect) -> tuple[int, int]:
    """Return how many columns and rows an event reaches."""
    middle = math.radians((space.south + space.north) / 2)
    sides_m = (
        (space.east - space.west) * _M_PER_DEGREE * math.cos(middle),
        (space.north - space.south) * _M_PER_DEGREE,
    )
    across, up = (max(1, round(_EVENT_M * (1 << _DEPTH) / side_m)) for side_m in sides_m)
    return across, up
