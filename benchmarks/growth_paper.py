"""What nodes say to each other, counted on paper from a record and a plan, for `growth.py`.

A client's registration is a cover, made by the gateway's own rule (`slack.py`). Where it leaves its
cover, it is registered anew at the nodes that hold the old cover or the new one, with an answer
from each. An event goes to the node that holds its place, and from there to the gateways of those
whose covers it meets, again with answers. What a node says to itself is no message.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from benchmarks.made_movement import SIDE_M, STEP_S
from benchmarks.recorded_movement import Fixes
from numpy.typing import NDArray

from nearcast.cluster.spatial_routing import PATIENCE
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.slack import widened
from nearcast.model import EARTH_RADIUS_M
from nearcast.model.shapes import Circle

DEPTH, REACH = 9, 10  # cells of 31 m; events are of interest within 300 m
RADIUS_M = 300.0
PER_DEGREE = math.pi * EARTH_RADIUS_M / 180
_SLICE = 12  # steps, an hour: who is there at the same time

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def around(lon: float, lat: float) -> Rect:
    """Return the rectangle of `$near` at a place."""
    wests, souths, easts, norths = zip(*Circle(lon, lat, RADIUS_M).bounds(), strict=True)
    return Rect(min(wests), min(souths), max(easts), max(norths))


@dataclass(frozen=True, eq=False)
class People:
    """Where some people are at each step: `lons[person, step]`, and where they live."""

    lons: Floats
    lats: Floats
    home_lons: Floats
    home_lats: Floats

    @classmethod
    def of(cls, fixes: Fixes, begin_s: float, end_s: float) -> People:
        """Return the part of a record between two instants; rounded as it will be published."""
        count = int(fixes.users.max()) + 1
        lons, lats = (np.round(one.reshape(count, -1), 6) for one in (fixes.xs, fixes.ys))
        seconds = fixes.seconds.reshape(count, -1)[0]
        chosen = (seconds >= begin_s) & (seconds < end_s)
        return cls(lons[:, chosen], lats[:, chosen], lons[:, 0], lats[:, 0])

    def first(self, count: int) -> People:
        """Return the first so many of these people."""
        columns = (self.lons, self.lats, self.home_lons, self.home_lats)
        return People(*(column[:count] for column in columns))

    @property
    def hours(self) -> float:
        """The hours of one person."""
        return float((self.lons.shape[1] - 1) * STEP_S / 3600)

    @cached_property
    def covers(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the cover of each person at each step, and whether it is a new one.

        With five minutes between two positions the gateway remembers one step: older ones are past
        its horizon.
        """
        people, steps = self.lons.shape
        covers, is_new = np.empty((people, steps, 4)), np.zeros((people, steps), np.bool_)
        for person in range(people):
            areas: deque[Rect] = deque(maxlen=2)
            cover: Rect | None = None
            for step in range(steps):
                areas.append(around(self.lons[person, step], self.lats[person, step]))
                if cover is None or not cover.covers(areas[-1]):
                    cover, is_new[person, step] = widened(list(areas), PATIENCE.slack), True
                covers[person, step] = cover
        return covers, is_new

    @cached_property
    def meetings(self) -> list[NDArray[np.float32]]:
        """Return for each hour in how many of its steps [publisher, subscriber] would match."""
        covers, _ = self.covers
        found = []
        for begin in range(0, self.lons.shape[1], _SLICE):
            counts = np.zeros((len(self.lons),) * 2, np.float32)
            for step in range(begin, min(begin + _SLICE, self.lons.shape[1])):
                west, south, east, north = covers[:, step].T
                lon, lat = self.lons[:, step, None], self.lats[:, step, None]
                counts += (west <= lon) & (lon <= east) & (south <= lat) & (lat <= north)
            found.append(counts)
        return found


def cells_of(degrees: Floats) -> Ints:
    """Return columns or rows of the grid."""
    cells = np.floor(degrees * PER_DEGREE / SIDE_M * (1 << DEPTH)).astype(np.int64)
    found: Ints = np.clip(cells, 0, (1 << DEPTH) - 1)
    return found


@dataclass(frozen=True)
class Paper:
    """Per user and hour: `handovers` to other sets of nodes, `upkeep` messages for registrations.

    `forwarded` is the mean number of messages for an event between the publisher's node and that
    of the place, `matched` between that and the subscribers' nodes.
    """

    handovers: float
    upkeep: float
    forwarded: float
    matched: float

    def messages(self, events_h: float) -> float:
        """Return all messages per user and hour."""
        return self.upkeep + events_h * (self.forwarded + self.matched)

    def line(self, events_h: float) -> str:
        """Return it as text."""
        return texts(self.handovers, self.messages(events_h), events_h)

    @classmethod
    def of(
        cls, plan: Plan, brokers: NDArray[np.int32], nodes: int, people: People, users: int
    ) -> Paper:
        """Count what so many users say, of whom `people` are a sample."""
        node_of = brokers[plan_owners(plan, DEPTH)]
        homes = node_of[cells_of(people.home_lats), cells_of(people.home_lons)]
        columns, rows = cells_of(people.lons), cells_of(people.lats)
        handovers, upkeep = _registrations(node_of, nodes, people, homes)
        here = node_of[rows, columns]
        forwarded = 2 * float((here != homes[:, None]).mean())
        matched = _matched(node_of, nodes, people, homes, users)
        return cls(handovers / people.hours, upkeep / people.hours, forwarded, matched)


def texts(handovers: float, messages_h: float, events_h: float) -> str:
    return (
        f"handovers per user and hour {handovers:.3f}  messages per user and hour "
        f"{messages_h:.2f}, per event {messages_h / events_h:.2f}"
    )


def _registrations(
    node_of: NDArray[np.int32], nodes: int, people: People, homes: NDArray[np.int32]
) -> tuple[float, float]:
    """Return how often a user's set of holders changes, and the messages for registrations."""
    covers, is_new = people.covers
    is_new = is_new[:, 1:]  # the first one is made before the count begins
    corners = [cells_of(covers[:, :, side]) for side in (0, 1, 2, 3)]  # west, south, east, north
    is_outside = (covers[:, :, :2].min(2) < 0) | (covers[:, :, 2:].max(2) > SIDE_M / PER_DEGREE)
    changes = np.zeros(is_new.shape, np.bool_)
    told = 0
    for node in range(nodes):
        sums = np.zeros((node_of.shape[0] + 1, node_of.shape[1] + 1), np.int64)
        sums[1:, 1:] = (node_of == node).cumsum(0).cumsum(1)
        west, south, east, north = corners[0], corners[1], corners[2] + 1, corners[3] + 1
        holds = (sums[north, east] - sums[south, east] - sums[north, west] + sums[south, west]) > 0
        if node == 0:  # it holds all that lies outside the plan
            holds |= is_outside
        before, after = holds[:, :-1], holds[:, 1:]
        changes |= before != after
        told += int((is_new & (before | after) & (homes != node)[:, None]).sum())
    count = len(homes)
    return int((changes & is_new).sum()) / count, 2 * told / count


def _matched(
    node_of: NDArray[np.int32], nodes: int, people: People, homes: NDArray[np.int32], users: int
) -> float:
    """Return the messages of an event between the node of its place and the subscribers' nodes.

    A node hears of an event if one of its clients has a cover there. For each person of the sample
    there are as many users who come and go alike, each by itself, as there are more users.
    """
    columns, rows = cells_of(people.lons), cells_of(people.lats)
    is_of = np.eye(nodes, dtype=np.float32)[homes]  # [person, node]
    total = 0.0
    for place, counts in enumerate(people.meetings):
        steps = slice(place * _SLICE, min((place + 1) * _SLICE, columns.shape[1]))
        here = node_of[rows[:, steps], columns[:, steps]]
        share = np.minimum(counts / np.float32(here.shape[1]), np.float32(1 - 1e-6))
        hears = -np.expm1(users / len(homes) * (np.log1p(-share) @ is_of))  # [publisher, node]
        person = np.arange(len(homes))[:, None]
        found = hears.sum(axis=1)[:, None] - hears[person, here]
        found -= np.where(homes[:, None] != here, hears[person, homes[:, None]], 0.0)
        total += 2 * float(found.sum())
    return total / columns.size
