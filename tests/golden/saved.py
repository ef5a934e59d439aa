"""Files that users and jobs keep: plans, policies, histograms, users, saved matchers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from tests.golden import wire
from tests.golden.golden import Maker, files_below, hex_lines
from tests.golden.wire import SHOPS

from nearcast.locality import Plan, Rect, plan_geojson
from nearcast.locality.layout.planfile import plan_to_json
from nearcast.locality.registration.plan_assignment import NamedPlan
from nearcast.locality.schedule.plan_schedule import ScheduledPlans, schedule_from_fields
from nearcast.matching import Matcher, open_matcher, save_matcher
from nearcast.model import Event, read_subscription
from nearcast.overlay import Extent
from nearcast.pipeline.jobs.histogram import EventHistogram, save_histogram
from nearcast.retained import Policies, TopicPolicy
from nearcast.retained.answers import BlockKey
from nearcast.retained.experience import Experience, Follows
from nearcast.retained.experience_file import experience_to_text
from nearcast.retained.general import GeneralPolicy, RateRange
from nearcast.retained.groups import GroupName, TopicGroups
from nearcast.retained.policyfile import policies_to_text
from nearcast.retained.process import Caps, Rates, Shape, Timeliness, Weights
from nearcast.server import set_password

SALT = bytes(range(16))
PLAN, NAMED_PLAN, POLICIES = "saved/plan.json", "saved/named-plan.json", "saved/policies.json"
SCHEDULE = "saved/shared-schedule.json"
PLAN_2 = "saved/plan-with-nodes-and-flows.json"
EXPERIENCE = "saved/retained-experience.json"
USERS, MATCHER = "saved/users", "saved/matcher.hex"
HISTOGRAM, MARGINALS = "saved/histogram.json", "saved/marginals.json"

_SPACE = Rect(0.0, 0.0, 64.0, 32.0)
THE_PLAN = Plan(
    _SPACE,
    [
        ("r0", Rect(3.5, 4.25, 20.0, 17.0), 120),
        ("r1.2", Rect(40.0, 4.0, 50.1, 9.0), 7),
        *((f"q{path}", _SPACE, load) for load, path in enumerate(("0", "1", "2", "30", "31"))),
        ("q32", _SPACE, 80),
        ("q33", _SPACE, 0),
    ],
    layout="qr",
    depth=10,
    fanout=8,
    version=7,
    brokers=[0, 1, 2, 0, 1, 2, 0, 1, 2],
)
THE_PLAN_2 = THE_PLAN.with_nodes(["n1", "berlin.2", "n3"]).with_flows({(0, 8): 31, (1, 2): 7})
THE_NAMED_PLAN = NamedPlan(THE_PLAN, ("n1", "berlin.2", "n3"))
THE_SCHEDULE = ScheduledPlans(
    schedule_from_fields(
        {
            "format": "nearcast-schedule",
            "format_version": 1,
            "time_zone": "Europe/Berlin",
            "changes": [
                {"days": ["mon", "sun"], "at": "06:30", "plan": "day.json"},
                {"days": ["mon", "tue"], "at": "20:00", "plan": "night.json"},
            ],
        },
        "here",
    ),
    {"day.json": THE_PLAN, "night.json": THE_PLAN},
    1_794_567_600_000,
)

_CAPS = Caps(2, 3)
_TIMELINESS = Timeliness(Shape.LINEAR, 4.5, 0.125)


def the_experience() -> TopicGroups:
    groups, one = TopicGroups(1), Experience(Weights(), _CAPS, Timeliness(), 0.95)
    one.follows = Follows.EXPERIENCE
    one.quality[0, 1], one.visits[1], one.evidence[:] = -0.25, 12, (9.5, 1, 2, 3, 4, 5)
    groups.restore(GroupName(BlockKey("plant/#", 10.0, 0.7, 5.0), -1, 2), one)
    return groups


THE_POLICIES = Policies(
    _CAPS,
    _TIMELINESS,
    0.9,
    GeneralPolicy(
        np.array([0.5, -1.25, 3.0, 0.1, 1e-9, 2.0, 7.0]),
        _CAPS,
        _TIMELINESS,
        0.9,
        0.03,
        RateRange((0.02, 3.0), (0.0, 1.0)),
    ),
    {
        "plant/7/é": TopicPolicy(
            np.array([[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]], np.uint8),
            Rates(0.6, 0.2, 0.1),
            Weights(0.7, 5.0),
        )
    },
)

_EXTENT = Extent(SHOPS.extent.lows[:2], SHOPS.extent.highs[:2])
THE_HISTOGRAMS = {
    HISTOGRAM: EventHistogram(
        "shops", ("price", "kind"), _EXTENT, 7, np.array([[1.0, 0.5, 0.0], [2.0, 3.5, 0.0]]), None
    ),
    MARGINALS: EventHistogram(
        "shops", ("price", "kind"), _EXTENT, 3, None, np.array([[1.0, 0.0], [2.5, 1.0]])
    ),
}


def histogram(name: str) -> str:
    """Return a histogram's file."""
    with tempfile.TemporaryDirectory() as folder:
        save_histogram(THE_HISTOGRAMS[name], Path(folder) / "histogram-shops.json")
        return (Path(folder) / "histogram-shops.json").read_text(encoding="utf-8")


def users() -> str:
    """Return a password file with two users, whose salt is fixed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(os, "urandom", lambda size: SALT[:size]),
    ):
        path = Path(folder) / "users"
        for name, password in (("bob", b""), ("ann", b"secret")):
            set_password(path, name, password)
        return path.read_text(encoding="utf-8")


WISHES = {
    7: ("shops/#", [("$where", "price < 10 and kind in (food, toys)")]),
    8: ("shops/#", [("$area", "circle(0.1,0.1,5km)")]),
    10: ("shops/#", [("$area", wire.SELECTIONS[5][0][1])]),
    9: ("shops/+", [("$where", "price > 50")]),
    1 << 40: ("shops/1", [("$area", "bbox(-1,-1,0,0)")]),
}
EVENT = Event.of(SHOPS, "shops/1", {"price": 5, "kind": "food", "lon": 0.1, "lat": 0.12})
MATCHES = [7, 8]


def matcher() -> str:
    """Return all files of a saved matcher."""
    made = Matcher([SHOPS])
    for key, (topics, pairs) in WISHES.items():
        made.add(key, read_subscription(topics, pairs).subscription)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "matcher"
        save_matcher(made, folder)
        files = {str(one.relative_to(folder)): one.read_bytes() for one in files_below(folder)}
    return hex_lines("the files of a saved matcher", files)


def matches(files: dict[str, bytes]) -> list[int]:
    """Return who matches the event, in a matcher that is opened from these files."""
    with tempfile.TemporaryDirectory() as name:
        for path, data in files.items():
            (Path(name) / path).parent.mkdir(exist_ok=True)
            (Path(name) / path).write_bytes(data)
        return sorted(open_matcher(name).match(EVENT))


FILES: dict[str, Maker] = {
    PLAN: lambda: plan_to_json(THE_PLAN),
    PLAN_2: lambda: plan_to_json(THE_PLAN_2),
    SCHEDULE: lambda: THE_SCHEDULE.to_bytes().decode() + "\n",
    NAMED_PLAN: lambda: THE_NAMED_PLAN.to_bytes().decode(),
    "saved/plan.geojson": lambda: plan_geojson(THE_PLAN, [Rect(1.0, 2.0, 3.0, 4.0)]),
    POLICIES: lambda: policies_to_text(THE_POLICIES),
    EXPERIENCE: lambda: experience_to_text(the_experience(), Policies(_CAPS)),
    HISTOGRAM: lambda: histogram(HISTOGRAM),
    MARGINALS: lambda: histogram(MARGINALS),
    USERS: users,
    MATCHER: matcher,
}
