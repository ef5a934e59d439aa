"""Blended ranks and one-attribute subscriptions through the broker, against brute force."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from nearcast.broker import SpaceSettings
from nearcast.model import Attribute, Space
from nearcast.mqtt import FilterRequest, Properties, PublishAnswer, Subscribe, Unsubscribe

JOBS = Space(
    name="jobs",
    topic_filter="jobs/#",
    attributes=(Attribute.number("pay", 0, 100), Attribute.number("hours", 0, 50)),
    missing="none",
)
BLENDS = {
    "narrowest:0.7,weight:0.3": {"narrowest": 0.7, "weight": 0.3},
    "weight:1, centre:3": {"centre": 0.75, "weight": 0.25},
    "narrowest:2,centre:1,weight:1": {"narrowest": 0.5, "centre": 0.25, "weight": 0.25},
    "weight:5": {"weight": 1.0},
}
Sides = dict[str, tuple[float, float]]


class JobSite:
    """Employers with vacancies on one attribute or two, and the oracle beside them."""

    def __init__(self, make_world: Any, seed: int, **options: Any) -> None:
        self.random = Random(seed)
        self.world = make_world(None, spaces=[SpaceSettings(space=JOBS)], **options)
        self.employers: dict[str, Any] = {}
        self.vacancies: dict[str, tuple[Sides, float, int]] = {}  # sides, weight, age
        self.age = 0

    def open_vacancies(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            name = f"e{number}"
            low = self.random.randrange(0, 90)
            sides: Sides = {"pay": (low, low + self.random.choice([0, 1, 5, 10]))}
            if number % 5 == 0:
                sides["hours"] = (10, self.random.choice([20, 40]))
            if number % 7 == 0:
                sides = {"hours": (self.random.randrange(0, 20), 40)}
            weight = self.random.choice([0.5, 1.0, 2.0])
            durable = {"session_expiry_interval": 999}
            self.employers[name] = self.world.welcome(name, props=durable)
            self.subscribe(name, sides, weight)

    def subscribe(self, name: str, sides: Sides, weight: float) -> None:
        where = " and ".join(f"{low} <= {n} <= {high}" for n, (low, high) in sides.items())
        client = self.employers[name]
        pairs = (("$where", where), ("$weight", str(weight)), ("$label", name))
        request = (FilterRequest("jobs/#", 1),)
        client.send(Subscribe(client.next_id(), request, Properties(user_properties=pairs)))
        self.vacancies[name] = (sides, weight, self.age)
        self.age += 1
        client.take()

    def unsubscribe(self, name: str) -> None:
        client = self.employers[name]
        client.send(Unsubscribe(client.next_id(), ("jobs/#",)))
        client.take()
        del self.vacancies[name]

    def best(self, event: Mapping[str, float], shares: dict[str, float], k: int) -> list[str]:
        found = []
        for name, (sides, weight, age) in self.vacancies.items():
            if not all(low <= event[n] <= high for n, (low, high) in sides.items()):
                continue
            ranges = {"pay": 100, "hours": 50}
            narrow = sum(
                math.log2(max((high - low) / ranges[n], 2.0**-20))
                for n, (low, high) in sides.items()
            )
            offsets = [
                (2 * event[n] - low - high) / (high - low)
                for n, (low, high) in sides.items()
                if high > low
            ]
            centre = math.sqrt(sum(offset**2 for offset in offsets) / 2)
            parts = {"narrowest": narrow, "centre": centre, "weight": -weight}
            score = sum(share * parts[rank] for rank, share in shares.items())
            found.append((round(score, 6), age, name))
        return [name for _, _, name in sorted(found)[:k]]

    def check(self, publisher: Any) -> None:
        for text, shares in BLENDS.items():
            for qos in (0, 1):
                event = {"pay": self.random.randrange(0, 100), "hours": self.random.randrange(50)}
                k = self.random.choice([1, 3, 5])
                pairs = (("$top", str(k)), ("$rank", text))
                payload = json.dumps(event).encode()
                publisher.publish(
                    "jobs/a", payload, qos, properties=Properties(user_properties=pairs)
                )
                got = [name for name, one in self.employers.items() if one.payloads()]
                assert sorted(got) == sorted(self.best(event, shares, k)), (text, event, k)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_by_a_blend_get_it_through_restarts_and_new_subscriptions(
    make_world: Any, seed: int
) -> None:
    site = JobSite(make_world, seed, with_journal=True)
    applicant = site.world.welcome("applicant")
    site.open_vacancies(0, 10)  # few enough to be scanned
    site.check(applicant)
    site.open_vacancies(10, 50)
    site.check(applicant)
    for number in range(0, 60, 4):
        site.unsubscribe(f"e{number}")
    site.check(applicant)
    for number in range(0, 60, 4):  # again, and younger
        site.subscribe(f"e{number}", {"pay": (20.0, 60.0)}, 1.0)
    site.check(applicant)
    site.world.crash_and_restart()
    durable = {"session_expiry_interval": 999}
    for name in site.employers:
        site.employers[name] = site.world.welcome(name, clean_start=False, props=durable)
    site.check(site.world.welcome("applicant"))


def test_a_blend_works_as_a_prefix_a_default_and_in_a_reply(make_world: Any) -> None:
    rank = "narrowest:0.7,weight:0.3"
    site = JobSite(make_world, 1)
    site.open_vacancies(0, 40)
    asker = site.world.welcome("asker")
    asker.subscribe("to/asker")
    asker.take()
    event = {"pay": 30, "hours": 15}
    wanted = site.best(event, BLENDS[rank], 3)
    payload = json.dumps(event).encode()
    asker.publish(f"$top/3/$rank/{rank}/jobs/a", payload)
    assert sorted(n for n, one in site.employers.items() if one.payloads()) == sorted(wanted)
    pairs = (("$reply", "matches"), ("$top", "3"), ("$rank", rank))
    asker.publish(
        "jobs/a", payload, properties=Properties(user_properties=pairs, response_topic="to/asker")
    )
    (answer,) = asker.publications()
    assert [row["label"] for row in json.loads(answer.payload)["matches"]] == wanted


@pytest.mark.parametrize(
    ("rank", "told"),
    [
        ("narrowest:0,weight:0", "shares that sum to 0"),
        ("narrowest:1,weight:-2", "found -2.0; expected a number from 0"),
        ("narrowest:1,wait:1", "Did you mean weight?"),
        ("narrowest:nan,weight:1", "found 'nan'"),
        ("weight:1,weight:1", "weight twice"),
        ("weight", None),
    ],
)
def test_a_bad_blend_is_answered_and_nothing_is_lost(
    make_world: Any, rank: str, told: str | None
) -> None:
    site = JobSite(make_world, 2)
    site.open_vacancies(0, 30)
    applicant = site.world.welcome("applicant")
    payload = json.dumps({"pay": 30, "hours": 15}).encode()
    for wish, expected in ((rank, told), ("narrowest:1,weight:1", None)):
        pairs = (("$top", "2"), ("$rank", wish))
        applicant.publish("jobs/a", payload, 1, properties=Properties(user_properties=pairs))
        (answer,) = [one for one in applicant.take() if isinstance(one, PublishAnswer)]
        reached = sum(len(one.payloads()) for one in site.employers.values())
        if expected is None:
            assert (answer.reason, reached) == (0, 2)
        else:
            assert answer.reason == 0x83
            assert expected in (answer.properties.reason_string or "")
            assert "$rank" in (answer.properties.reason_string or "")
            assert reached == 0
    assert not applicant.is_closed
