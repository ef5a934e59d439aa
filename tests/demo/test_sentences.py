"""The sentences of the demonstration follow from its figures: losses as well as gains."""

import asyncio
import functools
from collections.abc import Awaitable
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from nearcast.demo import story as telling
from nearcast.demo.city import BOUNDS, DemoCity, Place, quarter
from nearcast.demo.history import STEP_S, tracks_before, write_positions
from nearcast.demo.inhabitants import Inhabitants, NodeOf
from nearcast.demo.needs import Needs
from nearcast.demo.nodes import Brokers
from nearcast.demo.page import tables, verdicts
from nearcast.demo.plan_map import plan_map
from nearcast.demo.quadrants import movement_of, quadrant_plan, reach_in
from nearcast.demo.spark_process import SparkProcess
from nearcast.demo.story import Chapter, DemoStory
from nearcast.locality import Plan, Rect
from nearcast.locality.layout.costs import plan_owners
from nearcast.locality.layout.proposals import propose


def story(learned: Chapter, quadrants: Chapter) -> DemoStory:
    no_plan = Chapter(events=100, copies=50, wait_s=0.1, messages=400, bytes=90_000, handovers=0)
    return DemoStory(
        nodes=4, people=20, no_plan=no_plan, learned=learned, quadrants=quadrants,
        leaves=30, leaves_quadrants=31, leaves_needed=60,
    )  # fmt: skip


def test_a_gain_and_a_loss_are_both_said():
    worse = story(
        Chapter(events=100, copies=55, messages=450, bytes=1, handovers=20),
        Chapter(events=100, messages=300, bytes=1, handovers=40),
    )
    assert verdicts(worse) == [
        "Messages between nodes: 25 % fewer than with flooding.",  # 100 events, 3 nodes, answers
        "Messages between nodes: 12 % more than without a plan. No gain yet.",
        "Messages between nodes: 50 % more than with quadrants only. No gain yet.",
        "Handovers: 50 % fewer than with quadrants only.",
        "Areas needed for as many people: 50 % fewer than with quadrants only.",
        "Retained messages sent: 10 % more than with plain MQTT. No gain yet.",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_gain_is_claimed_only_where_the_figure_is_smaller(seed: int):
    random = Random(seed)
    learned = Chapter(messages=random.randrange(1, 900), handovers=random.randrange(1, 9))
    quadrants = Chapter(messages=random.randrange(1, 900), handovers=random.randrange(1, 9))
    said = [line for line in verdicts(story(learned, quadrants)) if "quadrants only" in line]
    assert learned.messages is not None
    assert quadrants.messages is not None
    is_fewer = learned.messages < 0.98 * quadrants.messages
    assert ("fewer" in said[0]) == is_fewer
    assert ("No gain yet" in said[0]) != is_fewer


def test_no_row_is_zero_without_meaning():
    chapter = Chapter(events=100, copies=1, messages=450, bytes=9_000, handovers=0)
    between, retained = tables(story(chapter, chapter))
    assert [row[0] for row in between.rows] == [
        "messages and answers",
        "kilobytes",
        "areas (leaves) of the plan",
    ]
    assert between.rows[0][1:] == ("600", "400", "450", "450")
    assert retained.rows[0][1:] == ("50", "1")


def test_without_learning_there_is_nothing_to_compare():
    assert list(tables(DemoStory(nodes=4))) == []
    assert verdicts(DemoStory(nodes=4)) == []


@functools.cache
def tracks_of_a_city(seed: int = 1) -> dict[str, list[Place]]:
    return tracks_before(60, seed)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("leaves", [12, 40])
def test_quadrants_to_compare_with_are_those_of_the_pipeline_with_brokers_about_as_full(
    leaves: int, seed: int
):
    space, tracks = Rect(*BOUNDS), tracks_of_a_city(seed).values()
    plan = quadrant_plan(space, tracks, leaves, 4, STEP_S)
    movement = movement_of(space, tracks, STEP_S)
    capacity = 2 * movement.users / leaves
    found = propose(space, [], movement, capacity, reach_in(space), is_trusted=True)
    assert [leaf.key for leaf in plan.leaves] == [leaf.key for leaf in found.plans["q_only"].leaves]
    assert (plan.layout, plan.r_count, tuple(plan.space)) == ("q", 0, BOUNDS)
    assert max(leaf.load for leaf in plan.leaves) <= round(capacity)
    assert plan.brokers is not None
    brokers = np.array(plan.brokers)[plan_owners(plan, movement.depth)]
    times_ms = movement.time_by_owner(brokers, 4)
    assert max(times_ms) <= 1.21 * sum(times_ms) / 4


def test_the_record_is_of_another_day_and_has_everybody_all_the_time(tmp_path: Path):
    tracks = tracks_of_a_city()
    lived = DemoCity(60)
    assert list(tracks) == [one.name for one in lived.movers]
    assert {len(track) for track in tracks.values()} == {3 * 3600 // STEP_S}
    assert all(tracks[one.name][0] != one.place for one in lived.movers)
    write_positions(tracks, tmp_path / "record.parquet")
    found = pq.read_table(tmp_path / "record.parquet").to_pandas()
    car = found[found.user_id == "car1"]
    assert list(zip(car.lon, car.lat, strict=True)) == tracks["car1"]
    assert set(car.t.diff().dropna().dt.total_seconds()) == {STEP_S}
    assert found.t.max() < pd.Timestamp.now("UTC")


def test_all_people_are_in_the_space_of_the_plans():
    places = np.concatenate([np.array(track) for track in tracks_of_a_city().values()])
    west, south, east, north = BOUNDS
    assert ((places >= (west, south)) & (places <= (east, north))).all()


def test_the_map_has_each_area_in_the_colour_of_its_node():
    tracks = tracks_of_a_city()
    plan: Plan = quadrant_plan(Rect(*BOUNDS), tracks.values(), 12, 4)
    names = ["north", "east", "south", "we<st"]
    svg = plan_map(plan, names, {name: track[-1] for name, track in tracks.items()})
    assert plan.brokers is not None
    assert svg.count("<rect ") == len(plan.leaves)
    assert svg.count("<circle ") == len(tracks)
    for broker, name in enumerate(names[:3]):
        assert svg.count(f"<title>{name}, ") == list(plan.brokers).count(broker)
    assert "we&lt;st" in svg
    assert "we<st" not in svg


class _Spark(SparkProcess):
    """Notes in which order things happen."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    is_started = True
    is_ready = False

    async def ready(self) -> None:
        self.order.append("Spark is up")

    async def run(self, *words: str) -> dict[str, object]:
        self.order.append("Spark learns")
        await asyncio.sleep(0.05)
        self.order.append("Spark has learned")
        summary = {"leaves": 3, "regions": 1, "leaves_q_only": 4}
        return {"steps": [{"name": "plan", "summary": summary}]}


async def test_the_city_never_lives_while_spark_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order: list[str] = []
    numbers: list[list[int]] = []
    learned: Plan = quadrant_plan(Rect(*BOUNDS), tracks_of_a_city(2).values(), 12, 2)

    class People(Inhabitants):
        async def begin(self, node_of: NodeOf = quarter) -> None: ...

        async def wait_for(self, work: Awaitable[telling.Outcome]) -> telling.Outcome:
            return await work

    class Nodes(Brokers):
        names = ("north", "east")

        async def copy_logs(self, target: str) -> list[Path]:
            return []

        def load(self, policies: Path) -> None: ...

        async def share(self, plan: Plan) -> tuple[str, ...]:
            return self.names

    async def live(
        _people: object, _nodes: object, _s: float, node_of: NodeOf, _: object
    ) -> Chapter:
        numbers.append([node_of(middle) for middle in DemoCity(8).districts])
        order.append("the city lives")
        return Chapter()

    monkeypatch.setattr(telling, "live_chapter", live)
    monkeypatch.setattr("nearcast.locality.load_plan", lambda _: learned)
    people, nodes = People(8, [1, 2]), Nodes(tmp_path)
    told = DemoStory(nodes=2, people=8)
    under_way = telling._Telling(
        tmp_path, 8, 1.0, 1, lambda _: None, lambda *_: None, _Spark(order)
    )
    await under_way._live_first(told, people, nodes)
    await under_way._learn(told, people, nodes)
    assert order == [
        "Spark is up", "the city lives", "Spark learns", "Spark has learned", "Spark learns",
        "Spark has learned", "the city lives", "the city lives",
    ]  # fmt: skip
    # everybody is at the quarter's node first, then where the learned plan has the place
    middles = DemoCity(8).districts
    assert numbers[0] == [quarter(middle) for middle in middles]
    assert numbers[1] == [learned.broker_of(learned.leaf_at(*middle).number) for middle in middles]


def test_what_learning_needs_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as without:
        without.setattr("nearcast.pipeline.session.find_spec", lambda _: None)
        assert Needs().missing() == "PySpark is not installed. pip install 'nearcast[spark]'"
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "Spark needs Java" in Needs().missing()


def test_an_installation_is_under_way_as_long_as_its_log_is_there(tmp_path: Path):
    log = tmp_path / "arriving"
    log.write_text("Installing PySpark ...\nInstalling Java ..")
    needs = Needs(log)
    assert needs.is_arriving()
    assert needs.progress() == "Installing Java .."
    log.unlink()
    assert not needs.is_arriving()
    assert needs.progress() == "Installing ..."


async def test_a_job_that_takes_its_time_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(telling, "_TELL_S", 0.02)
    (tmp_path / "positions").mkdir()
    said: list[str] = []
    told = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    async def work() -> str:
        await told.wait()
        return "done"

    assert await telling._told_meanwhile(work(), tmp_path, say) == "done"
    assert said[0] == "   0 s; wrote positions"
