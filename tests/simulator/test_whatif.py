"""What a plan or policies would have changed, from a log played again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.log_segments import write_segment
from tests.support.space_sections import placed_section
from tests.support.town import SPACE
from typer.testing import CliRunner

from nearcast.broker import RetainedSettings, SpaceSettings
from nearcast.cli.pipeline import app
from nearcast.cluster import NamedPlan
from nearcast.eventlog.records import Recorder
from nearcast.locality import CellCounts, Plan, plan_to_json
from nearcast.model import FileFormatError, MisuseError
from nearcast.retained import Policies, Rates, TopicPolicy, Weights, write_policies
from nearcast.simulator.replay_log import ReplayLog, read_actions
from nearcast.simulator.whatif import ReplayResult, WhatIfCase, compare, read_plan

CONFIG = placed_section("city", lon=(-1, 1), lat=(-1, 1))
BOUNDS = (-1.0, -1.0, 1.0, 1.0)


def moving_log(root: Path, steps: int = 40) -> None:
    """Let a client of n1 go to and fro across the middle; somebody at n2 tells of where it is."""
    one, two = Recorder(), Recorder()
    one.present("walker", 1_000, is_there=True)
    one.position("walker", -0.5, 0.0, 1_100)
    one.subscription(1_200, "walker", "$near/20000m/city/#", 1, is_added=True)
    two.present("$node/n1", 1_000, is_there=True)
    for step in range(steps):
        ms = 3_000 + 500 * step
        lon = -0.5 if step % 2 else 0.5
        one.position("walker", lon, 0.0, ms)
        body = json.dumps({"lon": lon, "lat": 0.01}).encode()
        two.events(1, ms + 200, 1, "teller", b"city/x", body, 0)
    write_segment(root, "n1", one)
    write_segment(root, "n2", two)


def plan_of(cuts: int, version: int = 1) -> Plan:
    """Return a plan of one leaf, or of so many more."""
    random = np.random.default_rng(1)
    xs, ys = random.uniform(-0.99, 0.99, 400), random.uniform(-0.99, 0.99, 400)
    counts = CellCounts.from_positions(BOUNDS, [], xs, ys, depth=4)
    return Plan.build(BOUNDS, [], counts, capacity=500 if not cuts else 120, version=version)


def test_a_plan_that_cuts_a_path_costs_handovers_and_one_that_does_not_saves_them(
    tmp_path: Path,
) -> None:
    moving_log(tmp_path)
    log = read_actions([str(tmp_path)], 10_000)
    whole = NamedPlan(plan_of(0).with_brokers([0]), ("n1", "n2"))
    many = plan_of(1)
    middle = [int(leaf.rect.west >= 0) for leaf in many.leaves]
    cut = NamedPlan(many.with_brokers(middle), ("n1", "n2"))
    done = compare(log, WhatIfCase(cut), WhatIfCase(whole), spaces=[SpaceSettings(space=SPACE)])

    assert done.old.deliveries == done.candidate.deliveries == 40
    assert done.candidate.handovers < done.old.handovers
    assert (done.old.handovers, done.candidate.handovers) == (40, 0)
    assert done.candidate.messages_between < done.old.messages_between
    again = compare(log, WhatIfCase(cut), WhatIfCase(cut), spaces=[SpaceSettings(space=SPACE)])
    assert again.old == again.candidate == done.old


def newcomers_log(root: Path) -> None:
    """Let a topic be published twice a second, with newcomers between."""
    recorder = Recorder()
    for step in range(60):
        ms = 1_000 + 500 * step
        recorder.events(1, ms, 4, "teller", b"news", b"%d" % step, 0)
        if step > 30:
            recorder.present(f"c{step}", ms + 200, is_there=True)
            recorder.subscription(ms + 201, f"c{step}", "news", 0, is_added=True)
    write_segment(root, "n1", recorder)


def policies_that(action: int) -> Policies:
    """Return a table for the topic that always sends (0) or always waits (1)."""
    actions = np.full(Policies().caps.table_shape, action, dtype=np.uint8)
    return Policies(topics={"news": TopicPolicy(actions, Rates(2.0, 1.0, 0.1), Weights())})


def test_a_policy_that_waits_saves_retained_copies(tmp_path: Path) -> None:
    newcomers_log(tmp_path)
    log = read_actions([str(tmp_path)], 10_000)
    retained = [RetainedSettings(topics="news", hold_max_s=5.0)]
    ways = (WhatIfCase(policies=policies_that(action)) for action in (0, 1))
    done = compare(log, *ways, retained=retained)

    # Experience learns to wait also where the policy does not, but only after some newcomers.
    assert done.candidate.retained_copies < done.old.retained_copies
    assert done.candidate.retained_held > done.old.retained_held
    assert done.candidate.retained_replaced > done.old.retained_replaced


def test_a_story_may_be_cut_and_says_so(tmp_path: Path) -> None:
    newcomers_log(tmp_path)
    log = read_actions([str(tmp_path)], 50)

    assert (len(log.acts), log.left_out) == (50, 68)
    assert isinstance(log, ReplayLog)


def test_a_log_without_events_is_refused(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.present("ann", 0, is_there=True)
    write_segment(tmp_path, "n1", recorder)

    with pytest.raises(MisuseError, match="the log has no publications"):
        read_actions([str(tmp_path)], 10)


def test_a_plan_of_another_version_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    text = json.loads(plan_to_json(plan_of(1)))
    assert read_plan(_written(path, json.dumps(text)), ["n1", "n2"]).nodes == ("n1", "n2")
    for key in text:
        if "format" in key or key == "nearcast_plan":
            text[key] = 99 if isinstance(text[key], int) else "other"
    for content in (json.dumps(text | {"format": 99}), "{", "[]"):
        with pytest.raises(FileFormatError):
            read_plan(_written(path, content), ["n1", "n2"])


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_command_shows_both_side_by_side(tmp_path: Path) -> None:
    moving_log(tmp_path / "log", steps=6)
    config = _written(tmp_path / "nearcast.toml", CONFIG)
    plan = _written(tmp_path / "plan.json", plan_to_json(plan_of(1)))
    words = ["whatif", "--input", str(tmp_path / "log"), "--config", str(config)]
    shown = CliRunner().invoke(app, [*words, "--plan", str(plan)])
    told = CliRunner().invoke(app, [*words, "--plan", str(plan), "--json"])

    assert shown.exit_code == 0, shown.output
    assert "candidate" in shown.output
    assert "handovers" in shown.output
    document = json.loads(told.output)
    assert document["nodes"] == ["n1", "n2"]
    assert set(document["old"]) == set(ReplayResult.__dataclass_fields__)


def test_the_command_wants_something_to_try_and_of_this_version(tmp_path: Path) -> None:
    moving_log(tmp_path / "log", steps=2)
    config = _written(tmp_path / "nearcast.toml", CONFIG)
    words = ["whatif", "--input", str(tmp_path / "log"), "--config", str(config)]
    nothing = CliRunner().invoke(app, words)
    assert isinstance(nothing.exception, MisuseError)
    policies = tmp_path / "policies.json"
    write_policies(Policies(), policies)
    policies.write_text(policies.read_text().replace('"version": 1', '"version": 7'))
    other = CliRunner().invoke(app, [*words, "--policies", str(policies)])
    assert isinstance(other.exception, FileFormatError)
    assert "version 7" in str(other.exception)
