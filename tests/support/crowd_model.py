"""What each client of a crowd must get, by definition: a message asks every subscription."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from nearcast.matching.ranking import centre_score
from nearcast.model import (
    Attribute,
    Circle,
    Event,
    Space,
    Subscription,
    distance_m,
)

SPACE = Space(
    name="s",
    topic_filter="s/#",
    attributes=(
        Attribute.number("price", 0, 10),
        Attribute.category("kind", ["food", "tools"]),
        Attribute.number("lon", -1, 1),
        Attribute.number("lat", -1, 1),
    ),
    longitude="lon",
    latitude="lat",
    missing="none",
)
NAMES = {"ann": 5, "bob": 4, "cyd": 5, "dan": 5}
FILTERS = ("s/#", "s/a", "s/+", "#")
WHERES = ("price < 4", "price <= 5 and kind = food", "price = 3 or price = 9", "kind != food")
AREAS = (
    "bbox(0,0,0.002,0.002)",
    "circle(0.002,0.002,200m)",
    'geojson({"type":"Polygon","coordinates":[[[0,0],[0.003,0],[0,0.003],[0,0]]]})',
)
RADII = (60.0, 120.0, 250.0)
PLACES = [(lon / 1000, lat / 1000) for lon in range(4) for lat in range(4)]
HYSTERESIS = 0.5

Seen = tuple[str, bytes, int, bool, tuple[int, ...], str]


def fits(topic_filter: str, topic: str) -> bool:
    if topic_filter in ("#", topic):
        return True
    if topic == "s":
        return topic_filter == "s/#"
    return topic.startswith("s/") and topic_filter in ("s/#", "s/+")


@dataclass
class Sub:
    owner: str
    topic_filter: str
    selection: Subscription | None
    group: str
    qos: int
    age: int
    no_local: bool = False
    identifier: int = 0
    weight: float = 1.0
    explain: bool = False
    inside: dict[str, int] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        bare = self.topic_filter if self.selection is None else self.selection.identity
        return f"$share/{self.group}/{bare}" if self.group else bare


@dataclass
class Person:
    version: int
    expiry_s: int
    is_here: bool = True
    place: tuple[float, float] | None = None
    subs: dict[str, Sub] = field(default_factory=dict)
    inbox: list[tuple[int, Seen]] = field(default_factory=list)  # expires at, message


@dataclass
class Loose:
    """A message that one of several members of a group must get."""

    candidates: dict[str, list[Seen]]
    expires_at_ms: int


class Model:
    def __init__(self, offline: str) -> None:
        self.people: dict[str, Person] = {}
        self.retained: dict[str, tuple[int, Event | None, bytes, int, int]] = {}
        self.loose: list[Loose] = []
        self.offline = offline
        self.age = 0
        self.version = 0
        self.now_ms = 0

    # --- definitions ----------------------------------------------------------------------

    def wants(self, sub: Sub, topic: str, event: Event | None) -> bool:
        if not fits(sub.topic_filter, topic):
            return False
        if sub.selection is None:
            return True
        return event is not None and sub.selection.covers(event, self.people[sub.owner].place)

    def quality(self, sub: Sub, event: Event | None, rank: str) -> tuple[float, float | None]:
        """Return what a subscription is ranked by, and its distance."""
        place = self.people[sub.owner].place
        selection = sub.selection or Subscription(topic_filter=sub.topic_filter)
        boxes = selection.boxes(SPACE, place)
        away = self.away(selection, place, event)
        if rank == "weight":
            return -sub.weight, away
        if rank == "nearest":
            return math.inf if away is None else away, away
        if sub.selection is None or event is None:
            return 0.0, away
        met = [b for b in boxes if any(b.intersects(other) for other in event.boxes())]
        if rank == "narrowest":
            best = min(box.accuracy(SPACE.extent) for box in met)
            return math.floor(best * 2**24 + 0.5) / 2**24, away
        middle = [
            value if isinstance(value, float) else math.inf
            for value in (event.point or self.middle(event))
        ]
        return min(centre_score(box.lows, box.highs, middle) for box in met), away

    @staticmethod
    def middle(event: Event) -> tuple[float, ...]:
        sides = event.boxes()[0].sides
        ends = [(side.closed_low, side.closed_high) for side in sides]
        return tuple((a + b) / 2 if math.isfinite(a + b) else math.inf for a, b in ends)

    @staticmethod
    def away(
        selection: Subscription, place: tuple[float, float] | None, event: Event | None
    ) -> float | None:
        shapes = selection.shapes(place) or ()
        if not shapes or event is None:
            return None
        shape = shapes[-1]
        if isinstance(shape, Circle):
            here = (shape.lon, shape.lat)
        elif hasattr(shape, "geometry"):
            here = (shape.geometry.centroid.x, shape.geometry.centroid.y)
        else:
            here = ((shape.west + shape.east) / 2, (shape.south + shape.north) / 2)
        there = event.position if event.area is None else Model.middle(event)[2:]
        return None if there is None else distance_m(*here, *there)

    # --- what happens ---------------------------------------------------------------------

    def give(self, sub: Sub, seen: Seen, expires_at_ms: int = 0) -> None:
        person = self.people[sub.owner]
        if person.is_here or (seen[2] and person.expiry_s):
            if person.version < 5:
                seen = (*seen[:4], (), "")
            person.inbox.append((expires_at_ms, seen))

    def keep(self, topic: str, event: Event | None, payload: bytes, qos: int, until: int) -> None:
        self.version += 1
        if payload:
            self.retained[topic] = (self.version, event, payload, qos, until)
        else:
            self.retained.pop(topic, None)

    def publish(
        self,
        who: str,
        topic: str,
        payload: bytes,
        event: Event | None,
        qos: int,
        retain: bool,
        top: int | None,
        rank: str,
        until: int,
    ) -> None:
        if retain:
            self.keep(topic, event, payload, qos, until)
        wanting = [
            sub
            for person in self.people.values()
            for sub in person.subs.values()
            if self.wants(sub, topic, event) and not (sub.no_local and sub.owner == who)
        ]
        in_space = topic != "o"
        if top is None:  # who does not want its own messages has had this one all the same
            own = [one for one in self.people[who].subs.values() if one.no_local]
            self.mark([one for one in own if self.wants(one, topic, event)], topic, qos, retain)
        if top is not None and in_space and self.offline == "skipped":
            wanting = [sub for sub in wanting if self.people[sub.owner].is_here]
        units: dict[Any, list[tuple[float, int, Sub, float | None]]] = {}
        for sub in wanting:
            unit = (sub.group, sub.topic_filter) if sub.group else sub.owner
            score, away = self.quality(sub, event, rank) if in_space else (0.0, None)
            units.setdefault(unit, []).append((score, sub.age, sub, away))
        order = sorted(units.values(), key=lambda each: min(one[:2] for one in each))
        for place, each in enumerate(order[: top if in_space else None], start=1):
            best = min(each, key=lambda one: one[:2])
            note = f"{place} " + ("" if best[3] is None else f"{best[3]:.1f}")
            if top is not None and in_space:
                self.give_best(best, each, topic, payload, qos, retain, note, until)
            else:
                told = note if in_space and any(one[2].explain for one in each) else ""
                self.give_all([one[2] for one in each], topic, payload, qos, retain, told, until)

    def mark(self, subs: list[Sub], topic: str, qos: int, retain: bool) -> None:
        if retain and topic in self.retained and self.retained[topic][1] is not None:
            for sub in subs:
                if self.people[sub.owner].is_here or min(qos, sub.qos):
                    sub.inside[topic] = self.retained[topic][0]

    def give_best(
        self,
        best: tuple[float, int, Sub, float | None],
        unit: list[tuple[float, int, Sub, float | None]],
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        note: str,
        until: int,
    ) -> None:
        sub = best[2]
        if sub.group and not self.people[sub.owner].is_here:
            here = [one for one in unit if self.people[one[2].owner].is_here]
            sub = min(here or [best], key=lambda one: one[:2])[2]
        self.mark([sub], topic, qos, retain)
        ids = (sub.identifier,) if sub.identifier else ()
        told = note if sub.explain else ""
        self.give(sub, (topic, payload, min(qos, sub.qos), False, ids, told), until)

    def give_all(
        self,
        subs: list[Sub],
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        told: str,
        until: int,
    ) -> None:
        self.mark(subs, topic, qos, retain)
        if not subs[0].group:
            ids = tuple(sorted(sub.identifier for sub in subs if sub.identifier))
            highest = min(qos, max(sub.qos for sub in subs))
            self.give(subs[0], (topic, payload, highest, False, ids, told), until)
            return
        here = [sub for sub in subs if self.people[sub.owner].is_here]
        able = here or [sub for sub in subs if min(qos, sub.qos)]
        if able:
            candidates: dict[str, list[Seen]] = {}
            for sub in able:
                ids = (sub.identifier,) if sub.identifier else ()
                seen = (topic, payload, min(qos, sub.qos), False, ids, "")
                candidates.setdefault(sub.owner, []).append(seen)
            self.loose.append(Loose(candidates, until))

    def subscribe(self, sub: Sub, handling: int) -> None:
        self.age += 1
        sub.age = self.age
        person = self.people[sub.owner]
        is_new = sub.identity not in person.subs
        person.subs[sub.identity] = sub
        sends = not sub.group and (handling == 0 or (handling == 1 and is_new))
        for topic, (version, event, payload, qos, until) in list(self.retained.items()):
            if self.wants(sub, topic, event):
                sub.inside[topic] = version
                if sends and not 0 < until <= self.now_ms:
                    ids = (sub.identifier,) if sub.identifier else ()
                    self.give(sub, (topic, payload, min(qos, sub.qos), True, ids, ""))

    def move(self, who: str, place: tuple[float, float]) -> None:
        person = self.people[who]
        if person.place == place:
            return
        person.place = place
        entered: dict[str, list[Sub]] = {}
        for sub in person.subs.values():
            if sub.selection is None or sub.selection.near_m is None:
                continue
            for topic, version in list(sub.inside.items()):
                if not self.still_near(sub, place, topic, version):
                    del sub.inside[topic]
            for topic, (version, event, _, _, _) in self.retained.items():
                if self.wants(sub, topic, event) and sub.inside.get(topic) != version:
                    sub.inside[topic] = version
                    entered.setdefault(topic, []).append(sub)
        for topic, subs in entered.items():
            _, _, payload, qos, until = self.retained[topic]
            mine = [sub for sub in subs if not sub.group]
            if mine and not 0 < until <= self.now_ms:
                ids = tuple(sorted(sub.identifier for sub in mine if sub.identifier))
                highest = min(qos, max(sub.qos for sub in mine))
                self.give(mine[0], (topic, payload, highest, True, ids, ""))

    def still_near(self, sub: Sub, place: tuple[float, float], topic: str, version: int) -> bool:
        current = self.retained.get(topic)
        if current is None or current[0] != version or current[1] is None:
            return False
        assert sub.selection is not None
        assert sub.selection.near_m is not None
        reach = Circle(*place, sub.selection.near_m * (1 + HYSTERESIS))
        event = current[1]
        if event.area is not None:
            return reach.touches(event.area)
        assert event.position is not None
        return reach.contains(*event.position)

    def restart(self) -> None:
        for name, person in list(self.people.items()):
            person.is_here = False
            if not person.expiry_s:
                del self.people[name]
                continue
            for sub in person.subs.values():
                sub.inside = {
                    topic: kept[0]
                    for topic, kept in self.retained.items()
                    if self.wants(sub, topic, kept[1])
                }
