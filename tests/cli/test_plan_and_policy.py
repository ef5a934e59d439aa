"""`nearcast plan …` and `nearcast policy …`, run in this process through Typer."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.locality import CellCounts, Plan, save_plan
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.retained import Policies, Rates, Weights, solve, write_policies
from nearcast.retained.policyfile import TopicPolicy

SPACE = (0.0, 0.0, 1000.0, 1000.0)
MARKET = (100.0, 100.0, 300.0, 250.0)


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.stdout


def a_plan(capacity: int, version: int) -> Plan:
    random = np.random.default_rng(1)
    xs, ys = random.uniform(0, 1000, 800), random.uniform(0, 1000, 800)
    counts = CellCounts.from_positions(SPACE, [MARKET], xs, ys, depth=8)
    return Plan.build(SPACE, [MARKET], counts, capacity=capacity, version=version)


@pytest.fixture
def plans(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    save_plan(a_plan(250, 1), old)
    save_plan(a_plan(60, 2), new)
    return old, new


def test_a_plan_is_described_and_drawn_with_its_regions(plans: tuple[Path, Path], tmp_path: Path):
    ring = [[100, 100], [300, 100], [300, 250], [100, 250], [100, 100]]
    feature = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}}
    regions = tmp_path / "regions.geojson"
    regions.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    picture = tmp_path / "plan.svg"
    text = run("plan", "show", plans[0], "--out", picture, "--regions", regions)
    assert "r leaves         1" in text
    assert "q leaves         4" in text
    assert "slow regions" in picture.read_text()
    on_map = tmp_path / "plan.geojson"
    facts = json.loads(run("plan", "show", plans[0], "--out", on_map, "--json"))
    assert facts["users"] == 800
    assert len(json.loads(on_map.read_text())["features"]) == 5


def test_plans_are_compared_leaf_by_leaf(plans: tuple[Path, Path]):
    text = run("plan", "diff", *plans, code=1)
    assert text.startswith("plan 1 -> 2")
    assert "- q0" in text
    assert "+ q00" in text
    assert "same leaves" in run("plan", "diff", plans[0], plans[0])
    assert json.loads(run("plan", "diff", *plans, "--json", code=1))["new_version"] == 2


def saved(plan: Plan, path: Path, brokers: str, nodes: list[str] | None = None) -> Path:
    save_plan(plan.with_brokers([int(one) for one in brokers]).with_nodes(nodes), path)
    return path


def test_the_difference_is_told_for_each_node(tmp_path: Path):
    before, after = a_plan(250, 1), a_plan(250, 2)  # r0 and four quarters
    users = [leaf.load for leaf in before.leaves]
    old = saved(before, tmp_path / "old.json", "00011", ["east", "west"])
    new = saved(after, tmp_path / "new.json", "00111", ["east", "west"])

    text = run("plan", "diff", old, new, code=1)

    table = [line.split() for line in text.splitlines()]
    assert ["node", "leaves", "gained", "lost", "users", "coming", "going"] in table
    moving = str(users[2])
    assert ["east", "2", "0", "1", str(sum(users[:2])), "0", moving] in table
    assert ["west", "3", "1", "0", str(sum(users[2:])), moving, "0"] in table
    assert f"About {moving} of 800 users change their node" in text
    shown = json.loads(run("plan", "diff", old, new, "--json", code=1))
    assert shown["registrations_handed_over"] == users[2]
    assert [(one["node"], one["gained"], one["lost"]) for one in shown["nodes"]] == [
        ("east", [], ["q1"]), ("west", ["q1"], [])
    ]  # fmt: skip


def test_a_new_plan_without_names_is_compared_as_it_would_be_shared(tmp_path: Path):
    old = saved(a_plan(250, 1), tmp_path / "old.json", "00011", ["east", "west"])
    turned = saved(a_plan(250, 2), tmp_path / "new.json", "11100")
    assert "same leaves on the same brokers" in run("plan", "diff", old, turned)
    numbers = saved(a_plan(250, 1), tmp_path / "numbers.json", "00011")
    assert "goes to another broker" in run("plan", "diff", numbers, turned, code=1)


def test_what_cannot_be_compared_is_refused(plans: tuple[Path, Path]):
    for words in ((*plans, plans[0]), (*plans, "--join", "nats://127.0.0.1:1")):
        with pytest.raises(MisuseError, match="two files, or one"):
            run("plan", "diff", *words)
    with pytest.raises(EnvironmentProblem, match="nats-server"):
        run("plan", "diff", plans[0], "--join", "nats://127.0.0.1:1", "--no-config")
    assert "assigns no brokers" in run("plan", "diff", *plans, code=1)


def test_files_that_are_no_plans_are_named(plans: tuple[Path, Path], tmp_path: Path):
    with pytest.raises(EnvironmentProblem, match=r"nowhere.json.*No such file"):
        run("plan", "show", tmp_path / "nowhere.json")
    cut = tmp_path / "cut.json"
    cut.write_text(plans[0].read_text()[:100])
    with pytest.raises(FileFormatError, match=r"cut.json"):
        run("plan", "show", cut)
    with pytest.raises(FileFormatError, match=r"GeoJSON polygons"):
        run("plan", "show", plans[0], "--regions", plans[0])
    with pytest.raises(MisuseError, match=r"\.svg or \.png"):
        run("plan", "show", plans[0], "--out", tmp_path / "plan.gif")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    empty = Policies()
    rates, weights = Rates(publish=0.6), Weights(omega=0.3)
    actions = solve(empty.process(rates, weights)).actions
    path = tmp_path / "policies.json"
    write_policies(Policies(topics={"plant/7/heat": TopicPolicy(actions, rates, weights)}), path)
    return path


def test_a_policy_is_described_and_drawn(policies: Path, tmp_path: Path):
    picture = tmp_path / "policy.svg"
    text = run("policy", "show", policies, "--out", picture)
    assert "plant/7/heat: waits in" in text
    assert picture.stat().st_size > 5_000
    facts = json.loads(run("policy", "show", policies, "--topic", "plant/7/heat", "--json"))
    row = facts["topics"]["plant/7/heat"]
    assert 0 < row["waits"] < row["states"]


def test_the_policy_that_comes_along_is_shown_without_a_file(tmp_path: Path):
    picture = tmp_path / "general.png"
    assert "for 0.02 to 3 publishes a step" in run("policy", "show", "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_topic_that_the_file_does_not_have_is_named(policies: Path, tmp_path: Path):
    with pytest.raises(MisuseError, match=r"attic.*plant/7/heat"):
        run("policy", "show", policies, "--topic", "attic")
    with pytest.raises(MisuseError, match=r"\.svg or \.png"):
        run("policy", "show", policies, "--out", tmp_path / "policy.pdf")
    empty = tmp_path / "empty.json"
    write_policies(Policies(), empty)
    with pytest.raises(MisuseError, match="no policy at all"):
        run("policy", "show", empty, "--out", tmp_path / "policy.svg")
