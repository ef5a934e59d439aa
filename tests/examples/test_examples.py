"""Every example runs against a real broker with its own configuration, and what it shows is so."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import served

pytestmark = pytest.mark.server

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def broker_of(name: str, directory: Path) -> Iterator[int]:
    """Run `nearcast serve` with the example's configuration; give its port."""
    options = ("--config", str(EXAMPLES / f"{name}.toml"), "--data", str(directory / "data"))
    with served(*options, "--port", "0", cwd=directory) as ports:
        yield ports["tcp"]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str) -> Any:
        with broker_of(name, tmp_path) as port:
            return importlib.import_module(name).run("127.0.0.1", port)

    return run


def test_an_alert_reaches_those_whose_area_it_touches_and_nobody_else(play):
    told = play("city_alerts")
    ana, ben, chiara, dev = "Ana (Mission)", "Ben (SoMa)", "Chiara (Golden Gate Park)", (
        "Dev (all of the city)"
    )  # fmt: skip
    assert told == {
        "water main burst at 16th and Valencia": [ana],
        "fire at 5th and Howard": [ben, dev],
        "fallen tree on Lincoln Way": [chiara],
        "13th Street closed": [ana, ben],
        "fog comes in from the ocean": [chiara, dev],
        "Eve": ["13th Street closed", "fire at 5th and Howard"],
    }


def test_each_order_reaches_the_three_nearest_free_couriers_in_order(play):
    dispatches = play("courier_dispatch")
    assert len(dispatches) == 8
    for dispatch in dispatches:
        assert dispatch.asked == dispatch.expected
    assert any(len(dispatch.asked) == 3 for dispatch in dispatches)


def test_each_candidate_sees_and_reaches_the_five_most_specific_vacancies(play):
    results = play("job_site")
    # By hand: log2 of the widths, relative to the ranges (age 85, salary 200,000, six trades).
    assert {name: each.shown for name, each in results.items()} == {
        "Kim": [
            "Grand Café: baker under 30",  # 16/85 × 25/200 × 1/6
            "Corner Bakery: night shift",  # 22/85 × 38/200 × 1/6
            "Canteen at the Docks: cook or baker, early",  # 45/200 × 2/6
            "Bread & Sons: baker",  # 1/6
            "Hotel Adler: kitchen, all ranks",  # 2/6; "Anything goes" (81/85) is the sixth
        ],
        "Lou": [
            "Hotel Adler: apprentice pastry chef",
            "Canteen at the Docks: cook or baker, early",
            "Bread & Sons: baker",
            "Hotel Adler: kitchen, all ranks",
        ],
        "Max": ["Harbour Freight: drivers and welders", "Anything goes Ltd: helping hands"],
        "Noa": ["City Hospital: nurse", "Anything goes Ltd: helping hands"],
    }
    assert all(each.reached == each.shown for each in results.values())


def test_players_see_exactly_whom_they_are_near_and_find_what_they_come_upon(play):
    game = play("presence")
    for each in game.rounds:
        assert each.seen == each.expected
    assert any(each.seen for each in game.rounds)
    assert {name: sorted(found) for name, found in game.found.items()} == {
        name: sorted(reached) for name, reached in game.in_reach.items()
    }
    assert any(game.found.values())


def test_an_example_is_a_command_that_ends_by_itself(tmp_path: Path):
    with broker_of("city_alerts", tmp_path) as port:
        command = [sys.executable, str(EXAMPLES / "city_alerts.py"), "--port", str(port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert "fire at 5th and Howard\n    -> Ben (SoMa), Dev (all of the city)" in run.stdout


def test_without_a_broker_an_example_says_what_to_start():
    command = [sys.executable, str(EXAMPLES / "city_alerts.py"), "--port", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode != 0
    assert "nearcast serve" in run.stderr


def test_a_broker_without_the_space_is_told_in_its_own_words(tmp_path: Path):
    with broker_of("city_alerts", tmp_path) as port:
        command = [sys.executable, str(EXAMPLES / "job_site.py"), "--port", str(port)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 1
    assert "Declare a [[space]] for these topics" in run.stderr
