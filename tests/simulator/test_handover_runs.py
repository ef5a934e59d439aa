"""Broker nodes under faults keep their promises; the judge notices when they do not."""

from __future__ import annotations

import pytest
from hypothesis import settings
from tests.support.handover_runs import (
    END_MS,
    Faults,
    HandoverRun,
    RunReport,
    _Log,
    judge,
    missing,
)
from tests.support.locality_node import DeliverToClient, LocalityActor

from nearcast.locality import Rect
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.holder import Holder
from nearcast.locality.registration.messages import PlacedEvent
from nearcast.locality.registration.node import LocalityNode

EVERYDAY = 16
SOAK = 2_000
COUNTED = ("crashes", "dropped", "deliveries")


def sample(everyday: int, soak: int) -> range:
    """Few seeds every day, many in the soak profile."""
    return range(soak if (settings.default and settings.default.max_examples > 50) else everyday)


def runs(faults: Faults | None, seeds: range) -> list[RunReport]:
    return [HandoverRun(seed, faults).execute() for seed in seeds]


@pytest.mark.timeout(7_200)
def test_nothing_acknowledged_is_lost_or_doubled_once_the_network_has_healed() -> None:
    reports = runs(None, sample(EVERYDAY, SOAK))

    assert [(report.seed, report.problems) for report in reports if report.problems] == []
    total = {key: sum(r.counts.get(key, 0) for r in reports) for key in COUNTED}
    assert total["crashes"] > len(reports) / 4  # the faults did happen
    assert total["dropped"] > 100 * len(reports)
    assert total["deliveries"] > 20 * len(reports)
    assert sum(r.counts["plan version"] > 1 for r in reports) > len(reports) / 4
    assert {4, 16} <= {report.nodes for report in reports} or len(reports) < 100


@pytest.mark.timeout(3_600)
def test_without_faults_nothing_is_lost_at_any_qos_while_clients_and_plans_move() -> None:
    reports = runs(Faults.none_but_delay(), sample(8, 200))

    assert [(report.seed, report.problems) for report in reports if report.problems] == []
    assert sum(report.counts["lost at QoS 0"] for report in reports) == 0
    assert sum(report.counts.get("crashes", 0) for report in reports) == 0


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = (HandoverRun(seed).execute() for seed in (5, 5, 6))

    assert first == again
    assert first.digest != other.digest


def _delivers_all(self: LocalityActor, event: PlacedEvent, names: list[str], _now: int) -> None:
    self._out += [DeliverToClient(name, event) for name in names]


def test_the_runs_notice_a_node_that_delivers_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: Gateway, name: str, event: PlacedEvent) -> bool:
        area = self._subscriptions[name].area_at(event.published_at)
        return area is not None and area.intersects(event.area)

    monkeypatch.setattr(Gateway, "_is_due", always)
    monkeypatch.setattr(LocalityActor, "deliver", _delivers_all)
    assert any("times" in problem for r in runs(None, range(2)) for problem in r.problems)


def test_the_runs_notice_a_gateway_that_does_not_look_where_the_client_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gateway, "_is_due", lambda *_: True)
    assert any("not due" in problem for r in runs(None, range(2)) for problem in r.problems)


def test_the_runs_notice_a_node_that_leaves_the_old_plan_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(self: LocalityNode, now: int) -> None:
        if self.plans.upcoming is not None:
            self.plans.commit()
            self._plans_changed(now)

    monkeypatch.setattr(LocalityNode, "_commit_if_all_use_it", at_once)
    reports = runs(Faults.none_but_delay(), range(12))
    assert any("lost" in problem for r in reports for problem in r.problems)


def test_the_runs_notice_a_holder_that_matches_events_only_as_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Holder, "_match_registration", lambda *_: [])
    problems = [problem for r in runs(None, range(6)) for problem in r.problems]
    assert any("lost" in problem for problem in problems)


# --- the judge -----------------------------------------------------------------------------------

HERE, THERE = Rect(0, 0, 1, 1), Rect(5, 5, 6, 6)


def log_of(*events: PlacedEvent) -> _Log:
    log = _Log()
    log.followed["s"] = [(10, HERE), (20, THERE), (30, None)]
    log.gateway_of["s"] = "n1"
    log.published = list(events)
    return log


def event(at: int, qos: int = 1, place: Rect = HERE, deadline: int = END_MS + 1) -> PlacedEvent:
    return PlacedEvent(("n0", at), place, at, deadline, qos)


@pytest.mark.parametrize(
    ("at", "place", "due"),
    [
        (9, HERE, False),
        (10, HERE, True),
        (19, HERE, True),
        (20, HERE, False),
        (20, THERE, True),
        (30, THERE, False),
    ],
)
def test_what_is_due_follows_from_where_the_client_was_at_publication(
    at: int, place: Rect, due: bool
) -> None:
    log = log_of(event(at, place=place))

    assert bool(missing(log, END_MS, qos_0=False)) == due
    log.delivered = [(40, "s", log.published[0])]
    assert bool(judge(log, END_MS)) == (not due)


def test_expired_events_dead_gateways_and_dead_publishers_are_owed_nothing() -> None:
    assert not missing(log_of(event(10, deadline=END_MS)), END_MS, qos_0=False)
    for dead in ("n0", "n1"):
        log = log_of(event(10))
        log.dead = {dead}
        assert not missing(log, END_MS, qos_0=False)


def test_late_and_repeated_deliveries_are_problems() -> None:
    due = event(10, deadline=50)
    log = log_of(due)
    log.delivered = [(50, "s", due)]
    assert any("deadline" in problem for problem in judge(log, END_MS))
    log.delivered = [(40, "s", due), (41, "s", due)]
    assert any("2 times" in problem for problem in judge(log, END_MS))


def test_a_loss_at_qos_0_needs_a_fault_that_explains_it() -> None:
    log = log_of(event(10, qos=0))
    assert judge(log, END_MS) == ["('n0', 10) (QoS 0) lost for s without a fault"]
    for dropped in (("event", ("n0", 10)), ("subscription", "s")):
        log.dropped = {dropped}
        assert judge(log, END_MS) == []
    log.dropped, log.crashes = set(), [(4_000, "n2")]
    assert judge(log, END_MS) == []
    log.crashes = [(9_000, "n2")]
    assert judge(log, END_MS) != []
