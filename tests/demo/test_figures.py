"""What the demonstration says about its figures follows from them, a loss as well as a gain."""

import asyncio
from pathlib import Path
from random import Random

import numpy as np
import pytest

from nearcast.demo import story as telling
from nearcast.demo.city import City, Place
from nearcast.demo.needs import Needs
from nearcast.demo.page import tables, verdicts
from nearcast.demo.quadrants import quadrants_like
from nearcast.demo.story import Chapter, Story
from nearcast.locality import Counts, Plan


def story(learned: Chapter, quadrants: Chapter) -> Story:
    no_plan = Chapter(events=100, copies=50, wait_s=0.1, messages=400, bytes=90_000, handovers=0)
    return Story(
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
        "Messages between nodes: 12 % more than with no plan. Not gained yet.",
        "Messages between nodes: 50 % more than with quadrants alone. Not gained yet.",
        "Handovers: 50 % fewer than with quadrants alone.",
        "Brokers needed, one for each leaf: 50 % fewer than with quadrants alone.",
        "Retained copies: 10 % more than before. Not gained yet.",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_gain_is_claimed_only_where_the_figure_is_smaller(seed: int):
    random = Random(seed)
    learned = Chapter(messages=random.randrange(1, 900), handovers=random.randrange(1, 9))
    quadrants = Chapter(messages=random.randrange(1, 900), handovers=random.randrange(1, 9))
    said = [line for line in verdicts(story(learned, quadrants)) if "quadrants alone" in line]
    assert learned.messages is not None
    assert quadrants.messages is not None
    is_fewer = learned.messages < 0.98 * quadrants.messages
    assert ("fewer" in said[0]) == is_fewer
    assert ("Not gained yet" in said[0]) != is_fewer


def test_no_row_is_zero_without_meaning():
    chapter = Chapter(events=100, copies=1, messages=450, bytes=9_000, handovers=0)
    between, retained = tables(story(chapter, chapter))
    assert [row[0] for row in between.rows] == ["messages, with answers", "kilobytes", "leaves"]
    assert between.rows[0][1:] == ("600", "400", "450", "450")
    assert retained.rows[0][1:] == ("50", "1")


def test_without_learning_there_is_nothing_to_compare():
    assert list(tables(Story(nodes=4))) == []
    assert verdicts(Story(nodes=4)) == []


def test_quadrants_to_compare_with_are_about_as_many_on_as_many_brokers():
    city = City(60)
    tracks: dict[str, list[Place]] = {}
    for _ in range(40):
        city.step(0.5)
        for one in city.movers:
            tracks.setdefault(one.name, []).append(one.place)
    places = np.concatenate([np.array(track) for track in tracks.values()])
    space = (-122.42, 37.78, -122.40, 37.80)
    counts = Counts.from_positions(space, [], places[:, 0], places[:, 1], depth=9)
    plan = Plan.build(space, [], counts, capacity=100)
    plan = plan.with_brokers([number % 4 for number in range(len(plan.leaves))])

    found = quadrants_like(plan, tracks.values(), version=7)

    assert abs(len(found.leaves) - len(plan.leaves)) <= 3
    assert found.brokers is not None
    assert set(found.brokers) == {0, 1, 2, 3}
    assert (found.version, found.layout, found.r_count) == (7, "q", 0)


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
    assert said[0] == "   0 s; written so far: positions"
