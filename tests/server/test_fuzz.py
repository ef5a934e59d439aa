"""A sample of the fuzzers that run against a broker process (`make soak` runs them for an hour)."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "fuzz"
pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _fuzz_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FUZZ), *sys.path])


@pytest.mark.timeout(300)
def test_valid_packets_with_extreme_values_harm_no_bystander_and_no_restart() -> None:
    told = runpy.run_path(str(FUZZ / "valid.py"))["run"](60.0, 1, 2, offenders=20)

    assert told.startswith("2 seeds of 20 offenders")


@pytest.mark.timeout(300)
def test_damaged_packets_harm_no_bystander() -> None:
    fuzz = runpy.run_path(str(FUZZ / "mqtt.py"))
    with fuzz["living"]() as live:
        rounds = fuzz["run"](2.0, 1, live)

    assert rounds > 100
    assert live.count >= 1


@pytest.mark.timeout(300)
def test_memory_stays_flat_over_short_connections() -> None:
    told = runpy.run_path(str(FUZZ / "connections.py"))["run"](500, 1)

    assert told.startswith("500 connections")


def test_a_broker_that_grows_by_more_than_allowed_is_told() -> None:
    with pytest.raises(AssertionError, match="at most"):
        runpy.run_path(str(FUZZ / "connections.py"))["run"](10, 1, most_grown_mb=-1_000.0)


def test_hours_of_devices_that_come_and_go_pass_in_simulated_time() -> None:
    churn = runpy.run_path(str(FUZZ / "churn.py"))
    day = churn["Day"](30, 1)
    for _ in range(3):
        day.run_hour()

    state = day.node.state
    assert day.now_ms == 1 + 3 * churn["HOUR_MS"]
    assert day.visits > 60
    assert day.messages > 1_000
    assert day.received > 500
    assert (day.node.wake_at() or day.now_ms) >= day.now_ms, "a timer was not run"
    assert 10 < len(state.sessions) < 90
    assert state.retained.count > 100
    assert not state.failures.count


def test_a_day_in_which_memory_grows_is_told() -> None:
    with pytest.raises(AssertionError, match="at most"):
        runpy.run_path(str(FUZZ / "churn.py"))["run"](2, 5, 1, most_grown=-0.5)


def test_damaged_messages_between_peers_harm_no_peer() -> None:
    assert runpy.run_path(str(FUZZ / "overlay.py"))["run"](3.0, 1) > 10


@pytest.mark.timeout(300)
def test_attacks_get_nothing_and_harm_no_bystander() -> None:
    """One round at least of each class."""
    attacks = runpy.run_path(str(FUZZ / "attacks.py"))
    seen = attacks["run"](list(attacks["CLASSES"]), 0.05, 1)

    assert len(seen) == 26
    assert all(one.rounds > 0 for one in seen.values())
    assert sum(len(one.wall_s) for one in seen.values()) > 20


@pytest.mark.timeout(300)
def test_all_attacks_at_the_same_time_get_nothing_and_harm_no_bystander() -> None:
    """As `make soak` runs them for an hour."""
    attacks = runpy.run_path(str(FUZZ / "attacks.py"))
    seen = attacks["run"](list(attacks["CLASSES"]), 2.0, 1, share=0.5)

    pings = seen.pop("together")
    assert len(seen) == 26
    assert pings.rounds == sum(one.rounds for one in seen.values())
    assert len(pings.wall_s) == len(pings.cpu_s) > 0
