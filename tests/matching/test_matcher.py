"""Whatever the history, the matcher answers as the definition does."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.invariants import check_matcher

from nearcast.index.topic_filters import topic_matches
from nearcast.matching import Matcher, MatcherView, filter_index, open_matcher, save_matcher
from nearcast.model import (
    Attribute,
    BoundingBox,
    Box,
    Circle,
    Event,
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
    MisuseError,
    OutOfRangeError,
    Polygon,
    Space,
    Subscription,
    UnknownNameError,
    distance_m,
    parse_where,
)


def city(name: str = "city", missing: str = "none", topics: str = "city/#") -> Space:
    return Space(
        name=name,
        topic_filter=topics,
        attributes=(
            Attribute.number("price", 0, 10),
            Attribute.category("kind", ["a", "b", "c"]),
            Attribute.number("lon", -180, 180),
            Attribute.number("lat", -90, 90),
        ),
        longitude="lon",
        latitude="lat",
        missing=missing,  # type: ignore[arg-type]
    )


FILTERS = ["city/#", "city/+", "city/x", "+/x"]
TOPICS = ["city", "city/x", "city/y", "city/x/y"]
WHERES = [
    None,
    "price < 5",
    "2 <= price <= 8",
    "price = 3",
    "kind = a",
    "kind in (a, c)",
    "price < 2 or price > 7",
    "price < 5 and kind = b",
    "not kind = a",
    "price >= 0",
]
LONS, LATS = [-180.0, -179.99, 0.0, 0.01, 0.02, 179.99, 180.0], [-0.01, 0.0, 0.01, 89.99]

places = st.tuples(st.sampled_from(LONS), st.sampled_from(LATS))
areas = st.one_of(
    st.none(),
    st.builds(lambda p: Circle(p[0], p[1], 1500.0), places),
    st.sampled_from([BoundingBox(0, -1, 0.01, 0.01), BoundingBox(179.995, -1, -179.9, 1)]),
    st.sampled_from([Polygon(((((0, -1), (0.02, 0), (0, 1), (0, -1)),),))]),
)
subscriptions = st.builds(
    lambda f, w, a, n: Subscription(
        topic_filter=f, where=parse_where(w) if w else None, area=a, near_m=n
    ),
    st.sampled_from(FILTERS),
    st.sampled_from(WHERES),
    areas,
    st.sampled_from([None, None, 1200.0, 3000.0]),
)
values = st.fixed_dictionaries(
    {"lon": st.sampled_from(LONS), "lat": st.sampled_from(LATS)},
    optional={"price": st.sampled_from([0, 2, 3, 5, 8, 10]), "kind": st.sampled_from("abc")},
)
event_areas = st.one_of(st.none(), st.none(), areas)
ranks = st.sampled_from(
    [
        "narrowest",
        "nearest",
        "centre",
        "weight",
        {"narrowest": 1, "weight": 4.0},
        {"narrowest": 0.5, "nearest": 2.0, "weight": 1.0},
        "weight:1,narrowest:3",
    ]
)


class MatcherAgreesWithTheDefinition(RuleBasedStateMachine):
    missing = "none"

    def __init__(self) -> None:
        super().__init__()
        self.space = city(missing=self.missing)
        self.matcher = Matcher([self.space])
        self.known: dict[int, tuple[Subscription, float, tuple[float, float] | None, int]] = {}
        self.age = 0

    def fresh_age(self) -> int:
        self.age += 1
        return self.age

    @rule(
        key=st.integers(0, 40),
        s=subscriptions,
        w=st.sampled_from([0.0, 1.0, 2.0]),
        at=st.none() | places,
    )
    def add_or_replace(self, key, s, w, at):
        if key in self.known:
            self.matcher.remove(key)
        self.matcher.add(key, s, weight=w, position=at)
        self.known[key] = (s, w, at, self.fresh_age())

    @rule(s=st.lists(subscriptions, min_size=5, max_size=30))
    def add_many(self, s):
        for key, each in enumerate(s, start=1000 + self.age):
            self.matcher.add(key, each, position=(0.0, 0.0))
            self.known[key] = (each, 1.0, (0.0, 0.0), self.fresh_age())

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.known)))
        self.matcher.remove(key)
        del self.known[key]

    @precondition(lambda self: self.known)
    @rule(data=st.data(), at=st.none() | places)
    def move(self, data, at):
        key = data.draw(st.sampled_from(sorted(self.known)))
        self.matcher.move(key, at)
        s, w, _, age = self.known[key]
        self.known[key] = (s, w, at, age)

    def wanted(self, event: Event) -> set[int]:
        return {
            key
            for key, (s, _, at, _) in self.known.items()
            if topic_matches(s.topic_filter, event.topic) and s.covers(event, at)
        }

    @rule(topic=st.sampled_from(TOPICS), v=values, area=event_areas)
    def match(self, topic, v, area):
        event = Event.of(self.space, topic, v, area)
        found = self.matcher.match(event)
        assert len(found) == len(set(found))
        assert set(found) == self.wanted(event)

    @rule(
        topic=st.sampled_from(TOPICS), v=values, area=event_areas, k=st.integers(1, 6), rank=ranks
    )
    def top(self, topic, v, area, k, rank):
        event = Event.of(self.space, topic, v, area)
        wanted = self.wanted(event)
        best = sorted((self.score(key, event, rank), self.known[key][3], key) for key in wanted)
        found = self.matcher.top(event, k, rank)
        assert [match.key for match in found] == [key for _, _, key in best[:k]]

    def score(self, key, event, rank):
        rank = {"weight": 0.25, "narrowest": 0.75} if ":" in rank else rank
        if isinstance(rank, dict):
            boxes = self.met(key, event)  # a blend is judged box by box
            return min(
                sum(r * self.box_score(key, b, event, n) for n, r in rank.items()) for b in boxes
            )
        if rank == "nearest":
            return self.distance(key, event)
        return min(self.box_score(key, box, event, rank) for box in self.met(key, event))

    def met(self, key, event):
        s, _, at, _ = self.known[key]
        extent = event.boxes()
        return [b for b in s.boxes(self.space, at) if any(b.intersects(e) for e in extent)]

    def box_score(self, key, box, event, rank):
        if rank == "weight":
            return -self.known[key][1]
        if rank == "nearest":  # in a blend, in kilometres
            return self.distance(key, event) / 1000
        if rank == "narrowest":
            return round(box.accuracy(self.space.extent) * 2**24) / 2**24
        total = 0.0
        for side, part in zip(box.sides, event.boxes()[0].sides, strict=True):
            x = (part.closed_low + part.closed_high) / 2
            half = (side.closed_high - side.closed_low) / 2
            if math.isfinite(x) and math.isfinite(half) and half > 0:
                total += ((x - (side.closed_high + side.closed_low) / 2) / half) ** 2
        return round(math.sqrt(total / 4), 9)

    def distance(self, key, event) -> float:
        s, _, at, _ = self.known[key]
        shapes = s.shapes(at)
        if not shapes:
            return math.inf
        last = shapes[-1]
        if isinstance(last, Circle):
            middle = (last.lon, last.lat)
        elif isinstance(last, BoundingBox):
            middle = (0.005, -0.495) if last.west == 0 else (-179.9525, 0.0)
        else:
            middle = (last.geometry.centroid.x, last.geometry.centroid.y)
        here = event.position
        if event.area is not None:
            box = event.boxes()[0]
            here = tuple((b.low + b.high) / 2 for b in box.sides[2:])
        assert here is not None
        return distance_m(*middle, *here)

    @rule(topic=st.sampled_from(TOPICS), vs=st.lists(values, max_size=8), k=st.integers(1, 4))
    def batch(self, topic, vs, k):
        events = [Event.of(self.space, topic, v) for v in vs]
        points = [event.point for event in events]
        if any(point is None for point in points):
            return
        rows = np.array(points, float).reshape(len(points), 4)
        offsets, keys = self.matcher.match_points("city", topic, rows)
        tops = self.matcher.top_points("city", topic, rows, k)
        for i, event in enumerate(events):
            part = keys[offsets[i] : offsets[i + 1]].tolist()
            assert len(part) == len(set(part))
            assert set(part) == self.wanted(event)
            best = [match.key for match in self.matcher.top(event, k)]
            assert tops[i].tolist() == best + [-1] * (k - len(best))

    @invariant()
    def structure_holds(self):
        check_matcher(self.matcher)
        assert len(self.matcher) == len(self.known)


class MissingMeansAll(MatcherAgreesWithTheDefinition):
    missing = "all"


profile = settings.get_profile(settings.get_current_profile_name())
steps = settings(max_examples=max(10, profile.max_examples // 2), stateful_step_count=25)
TestMatcher = MatcherAgreesWithTheDefinition.TestCase
TestMatcher.settings = steps
TestMissingMeansAll = MissingMeansAll.TestCase
TestMissingMeansAll.settings = steps


@pytest.fixture(autouse=True)
def few_is_very_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small histories shall reach the index too."""
    monkeypatch.setattr(filter_index, "MANY", 4)


SUBSCRIPTION = Subscription(topic_filter="city/#", where=parse_where("price < 5"))
EVENT = Event.of(city(), "city/x", {"price": 3, "lon": 0, "lat": 0})


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (lambda m: m.add(1, SUBSCRIPTION), KeyInUseError, "the key 1"),
        (lambda m: m.remove(2), KeyMissingError, "the key 2"),
        (lambda m: m.move(2, (0, 0)), KeyMissingError, "the key 2"),
        (lambda m: m.add(2, SUBSCRIPTION, weight=math.nan), OutOfRangeError, "weight"),
        (lambda m: m.add(2, SUBSCRIPTION, weight=math.inf), OutOfRangeError, "weight"),
        (
            lambda m: m.add(2, Subscription(topic_filter="city/#", where=parse_where("prise < 5"))),
            UnknownNameError,
            "price",
        ),
        (
            lambda m: m.add(2, Subscription(topic_filter="town/#", where=parse_where("price < 5"))),
            MisuseError,
            "town/#",
        ),
        (
            lambda m: m.add(2, Subscription(topic_filter="city/#", near_m=5), position=(0, 91)),
            OutOfRangeError,
            "latitude 91",
        ),
        (lambda m: m.move(9, (math.nan, 0)), OutOfRangeError, "NaN|nan"),
        (lambda m: m.top(EVENT, 0), OutOfRangeError, "k"),
        (lambda m: m.top(EVENT, True), OutOfRangeError, "k"),
        (lambda m: m.top(EVENT, 1, "widest"), UnknownNameError, "widest"),
        (lambda m: m.top(EVENT, 1, {"farthest": 1.0}), UnknownNameError, "farthest"),
        (lambda m: m.top(EVENT, 1, {"weight": -1.0}), OutOfRangeError, "weight"),
        (lambda m: m.top(EVENT, 1, {"weight": 0.0}), OutOfRangeError, "sum to 0"),
        (lambda m: m.top(EVENT, 1, {"weight": math.nan}), OutOfRangeError, "nan"),
        (lambda m: m.top(EVENT, 1, "weight:1,weight:2"), MisuseError, "weight twice"),
        (lambda m: m.top(EVENT, 1, {}), MisuseError, "rank"),
        (lambda m: m.match_points("city", "city/x", [[1, 2, 3]]), MisuseError, "shape"),
        (lambda m: m.match_points("city", "city/x", [[1, 0, 0, math.nan]]), OutOfRangeError, "NaN"),
        (lambda m: m.match_points("town", "city/x", [[1, 0, 0, 0]]), MisuseError, "town"),
    ],
)
def test_a_mistake_is_answered_and_changes_nothing(change, kind, told):
    matcher = Matcher([city()])
    matcher.add(1, SUBSCRIPTION)
    matcher.add(9, Subscription(topic_filter="city/#", near_m=50), position=(0.0, 0.0))
    with pytest.raises(kind, match=told):
        change(matcher)
    assert sorted(matcher.match(EVENT)) == [1, 9]
    assert len(matcher) == 2
    check_matcher(matcher)


def test_a_filter_over_two_spaces_is_resolved_in_each():
    here = city("here", topics="here/#")
    there = Space(
        name="there", topic_filter="there/#", attributes=(Attribute.number("speed", 0, 9),)
    )
    matcher = Matcher([here, there])
    matcher.add(1, Subscription(topic_filter="#", where=parse_where("speed > 5")))
    matcher.add(2, Subscription(topic_filter="#"))
    matcher.add(3, Subscription(topic_filter="#", where=parse_where("price < 5")))
    fast = Event.of(there, "there/a", {"speed": 6})
    cheap = Event.of(here, "here/a", {"price": 1, "lon": 0, "lat": 0})
    assert sorted(matcher.match(fast)) == [1, 2]
    assert sorted(matcher.match(cheap)) == [2, 3]
    with pytest.raises(UnknownNameError, match="colour"):
        matcher.add(4, Subscription(topic_filter="#", where=parse_where("colour = 1")))


def test_of_equally_narrow_subscriptions_the_older_comes_first_even_if_its_owner_was_found_late():
    matcher = Matcher([city()])
    wish = Subscription(topic_filter="city/#", near_m=1000)
    matcher.add(1, wish)
    for key in range(2, 20):
        matcher.add(key, wish, position=(0.0, 0.0))
    matcher.move(1, (0.0, 0.0))
    assert [match.key for match in matcher.top(EVENT, 3)] == [1, 2, 3]


@settings(max_examples=max(10, profile.max_examples // 4))
@given(st.lists(subscriptions, max_size=12), st.lists(values, max_size=4), st.integers(1, 4))
def test_what_is_saved_and_opened_answers_alike(wishes, several, k):
    matcher = Matcher([city()])
    for key, wish in enumerate(wishes):
        matcher.add(key, wish, position=(0.0, 0.0))
    with TemporaryDirectory() as folder:
        save_matcher(matcher, Path(folder) / "m")
        view = open_matcher(Path(folder) / "m")
        for topic in TOPICS:
            for event in (Event.of(city(), topic, each) for each in several):
                assert sorted(view.match(event)) == sorted(matcher.match(event))
                assert view.top(event, k) == matcher.top(event, k)


def test_who_has_several_boxes_around_an_event_is_found_once_in_what_is_opened(tmp_path: Path):
    matcher = Matcher([city()])
    wheres = ("price <= 6 or kind = a", "price >= 2 or kind = a", "price < 9")
    for key, where in enumerate(wheres):
        matcher.add(key, Subscription(topic_filter="city/#", where=parse_where(where)))
    save_matcher(matcher, tmp_path / "m")
    view = open_matcher(tmp_path / "m")
    event = Event.of(city(), "city/x", {"price": 4, "kind": "a", "lon": 0, "lat": 0})
    assert sorted(view.match(event)) == [0, 1, 2]
    assert sorted(match.key for match in view.top(event, 5)) == [0, 1, 2]


@given(st.lists(st.sampled_from([w for w in WHERES if w and "or" not in w and "in" not in w])))
def test_boxes_given_at_once_answer_as_subscriptions_given_one_by_one(wheres):
    space = city()
    matcher = Matcher([space])
    boxes: list[Box] = []
    for key, where in enumerate(where for where in wheres if "not" not in where):
        matcher.add(key, Subscription(topic_filter="city/#", where=parse_where(where)))
        boxes += space.boxes(where)
    lows, highs = np.array([box.lows for box in boxes]), np.array([box.highs for box in boxes])
    view = MatcherView.of_boxes(space, range(len(boxes)), lows, highs) if boxes else matcher
    for price in (0, 3, 4.5, 10):
        event = Event.of(space, "city/x", {"price": price, "kind": "a", "lon": 0, "lat": 0})
        assert sorted(view.match(event)) == sorted(matcher.match(event))
        assert view.top(event, 3) == matcher.top(event, 3)


@pytest.mark.parametrize("damage", ["cut", "format", "missing", "text", "rows"])
def test_a_damaged_file_is_an_answer(tmp_path: Path, damage: str):
    matcher = Matcher([city()])
    matcher.add(1, SUBSCRIPTION)
    save_matcher(matcher, tmp_path / "m")
    manifest = tmp_path / "m" / "manifest.json"
    text = manifest.read_text()
    if damage == "cut":
        manifest.write_text(text[: len(text) // 2])
    elif damage == "format":
        manifest.write_text(text.replace('"format": 2', '"format": 7'))
    elif damage == "missing":
        manifest.unlink()
    elif damage == "text":
        manifest.write_text(text.replace('"name": "price"', '"nom": "price"'))
    else:
        (tmp_path / "m" / "0.rows.npy").write_bytes(b"short")
    with pytest.raises(FileFormatError, match="m: "):
        open_matcher(tmp_path / "m")


def test_a_matcher_is_not_saved_over_another(tmp_path: Path):
    matcher = Matcher([city()])
    save_matcher(matcher, tmp_path / "m")
    with pytest.raises(MisuseError, match="not empty"):
        save_matcher(matcher, tmp_path / "m")
