"""The examples of `--help`: each is a command line that is taken, and is run unless it takes long.

They are run as they stand, but for ports and addresses: those of a broker and a NATS of the test.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from tests.support.commands import ENVIRON, nearcast, start_nearcast
from tests.support.log_segments import write_segment
from tests.support.waiting import END_S

from nearcast.cli import app
from nearcast.eventlog.records import Recorder
from nearcast.locality import CellCounts, Plan, save_plan
from nearcast.model.errors import EnvironmentProblem
from nearcast.retained import Policies, Rates, Weights, solve, write_policies
from nearcast.retained.policyfile import TopicPolicy
from nearcast.server.local_cluster import find_nats_server, free_port

LOGGED = {"NEARCAST_LOG__EVENTS": "full", "NEARCAST_LOG__SEGMENT": "1s"}
LONG = "its --quick takes longer than 20 s"
ONLY_PARSED = {
    "peer": "its addresses are of other machines; tests/server/test_peers.py runs peers",
    "peers": "as peer",
    "demo": "it takes two minutes; tests/demo runs its parts",
    "reproduce": LONG + "; tests/papers runs its parts",
    **{f"bench {name}": LONG for name in ("match", "order", "broker", "selective", "retained")},
    **{f"bench {name}": LONG for name in ("plan", "network", "pipeline", "learning", "dashboard")},
    "bench workers": LONG,
}
RUN: set[str] = set()


Test = TypeVar("Test", bound=Callable[..., None])


def runs(*names: str) -> Callable[[Test], Test]:
    """Note that a test runs the examples of these commands."""
    RUN.update(names)
    return lambda test: test


def has_nats() -> bool:
    try:
        find_nats_server()
    except EnvironmentProblem:
        return False
    return True


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, one in getattr(command, "commands", {}).items():
        yield from leaves(one, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


def examples(name: str) -> list[str]:
    text = " ".join((COMMANDS[name].help or "").split())
    return [one.strip().removeprefix("nearcast ") for one in text.split("Example: ")[1:]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_a_command_line_that_is_taken(name: str):
    assert examples(name)
    for one in examples(name):
        words = shlex.split(one)
        assert words[: len(name.split())] == name.split()
        COMMANDS[name].make_context(name, words[len(name.split()) :]).close()


def test_every_example_is_run_or_it_is_said_why_not():
    assert not RUN & ONLY_PARSED.keys()
    assert RUN | ONLY_PARSED.keys() == COMMANDS.keys()


class Place:
    """A directory in which examples are run, and the port of their broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(free_port())

    def words(self, example: str) -> list[str]:
        words = shlex.split(example.replace("1884", self.port))
        words = [one.replace("/var/lib/nearcast", "nearcast-data") for one in words]
        is_asked = words[:2] == ["policy", "explain"]
        if (words[0] in {"pub", "sub", "explain"} or is_asked) and "--log" not in words:
            words += ["-p", self.port]
        return words

    def run(self, example: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return nearcast(*self.words(example), text=text, cwd=self.folder)

    def start(self, example: str, *more: str, **environ: str) -> subprocess.Popen[str]:
        words = [*self.words(example), *more]
        return start_nearcast(*words, cwd=self.folder, env=ENVIRON | environ)


def first(stream: Any, start: str) -> str:
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line.startswith(start):
            return "".join(lines)
    raise AssertionError(lines)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@runs("init", "config check", "passwd")
def test_the_examples_of_files_work(place: Place):
    assert place.run(examples("init")[0]).returncode == 0
    checked = place.run(examples("config check")[0])
    assert checked.stdout.startswith("fleet.toml is valid:")
    assert "open: rates.connections_address" not in place.run(examples("config check")[1]).stdout
    add, delete, operator, viewer = examples("passwd")
    assert place.run(add, "secret\n").stdout.startswith("alice is in users.txt.")
    assert place.run(delete).stdout == "alice is no longer in users.txt\n"
    assert place.run(operator, "secret\n").stdout.startswith("ann is in operators.txt.")
    assert "The token, which is shown only now: " in place.run(viewer).stdout


@runs("ban add", "ban list", "ban remove", "keys new", "keys show")
def test_the_examples_of_bans_and_keys_work(place: Place):
    network, user = examples("ban add")
    assert "address 203.0.113.0/24 until" in place.run(network).stdout
    assert "user eve for ever" in place.run(user).stdout
    assert len(place.run(examples("ban list")[0]).stdout.splitlines()) == 2
    assert "not banned any more" in place.run(examples("ban remove")[0]).stdout
    node, operator = examples("keys new")
    line = place.run(node).stdout
    assert line.startswith("node berlin ")
    assert place.run(operator).stdout.startswith("operator alice ")
    assert place.run(examples("keys show")[0]).stdout == line


@runs("serve", "sub", "pub", "status", "explain", "policy explain")
@runs("journal check", "journal repair")
@pytest.mark.server
def test_the_examples_of_a_broker_work(place: Place):
    place.run("init")
    _, with_config, *_ = examples("serve")
    broker = place.start(with_config, **LOGGED)
    try:
        assert "Configuration: nearcast.toml" in first(broker.stdout, "Ready.")
        everything, near, lasting = examples("sub")
        clients = [
            place.start(one, "-C", count, "-W", "200")
            for one, count in ((everything, "2"), (near, "1"), (lasting, "2"))
        ]
        for client in clients:
            assert client.stderr is not None
            assert client.stderr.readline().startswith("Subscribed to shops/# at QoS")
        for one in examples("pub"):
            run = place.run(one)
            assert (run.returncode, run.stderr) == (0, "")
        told = [client.communicate(timeout=200) for client in clients]
        assert [client.returncode for client in clients] == [0, 0, 0], told
        assert told[0][0].startswith('shops/bakery {"price": 3, "lon": 2.35')
        assert told[1][0] == '{"price": 3, "lon": 2.35, "lat": 48.85}\n'
        assert "clients/connected" in place.run(examples("status")[0]).stdout
        told_policy = place.run(examples("policy explain")[0])
        assert "gets the retained message at once: no [[retained]] block" in told_policy.stdout
        live, logged = examples("explain")
        now = place.run(live)
        assert "topic       subscribed by shops/#" in now.stdout  # the session lasts, bob is away
        assert "at QoS 0 nothing waits for a client that is away" in now.stdout
    finally:
        broker.terminate()
        broker.communicate(timeout=END_S)
    past = place.run(logged)
    assert re.search(r"^event \d+, .* shops/bakery", past.stdout), past.stderr
    assert "bob gets it" in past.stdout
    checked = place.run(examples("journal check")[0])
    assert "1 sessions" in checked.stdout, checked.stderr
    assert place.run(examples("journal repair")[0]).returncode == 0


@pytest.mark.server
def test_the_example_of_a_broker_without_a_configuration_works(place: Place):
    plain = examples("serve")[0]
    assert plain == "serve"
    broker = place.start(plain, "--port", place.port)
    try:
        told = first(broker.stdout, "Ready.")
        assert "No configuration file: using the defaults" in told
        assert f"Listening on tcp 127.0.0.1:{place.port}" in told
    finally:
        broker.terminate()
        broker.communicate(timeout=END_S)


@runs("up", "nodes")
@pytest.mark.server
@pytest.mark.skipif(not has_nats(), reason="nats-server is not installed (make setup)")
def test_the_examples_of_a_network_work(place: Place):
    fleet = place.start(examples("up")[0], "--port", place.port)
    berlin = None
    try:
        told = first(fleet.stdout, "Ready.")
        address = re.search(r"nearcast nodes --join (\S+)", told)
        assert address, told
        join = examples("serve")[3].replace("nats://127.0.0.1:4222", address[1])
        berlin = place.start(join, "--port", str(free_port()))
        assert "Network nearcast (joined)" in first(berlin.stdout, "Ready.")
        show, leave = examples("nodes")
        shown = place.run(show.replace("nats://127.0.0.1:4222", address[1])).stdout
        for name in ("node-1", "node-2", "node-3", "node-4", "berlin"):
            assert name in shown
        left = place.run(f"{leave} --join {address[1]}")
        assert left.stdout == "node-3 is leaving.\n", left.stderr
        assert first(fleet.stderr, "node-3 has ended")
    finally:
        for process in filter(None, (berlin, fleet)):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def a_plan(capacity: int, version: int) -> Plan:
    space, market = (8.0, 47.0, 9.0, 48.0), (8.1, 47.1, 8.3, 47.25)
    random = np.random.default_rng(1)
    xs, ys = random.uniform(8, 9, 800), random.uniform(47, 48, 800)
    counts = CellCounts.from_positions(space, [market], xs, ys, depth=8)
    return Plan.build(space, [market], counts, capacity=capacity, version=version)


@runs("plan show", "plan diff", "policy show")
def test_the_examples_of_plans_and_policies_work(place: Place):
    save_plan(a_plan(250, 1), place.folder / "plan-1.json")
    save_plan(a_plan(60, 2), place.folder / "plan-2.json")
    save_plan(a_plan(60, 2), place.folder / "plan.json")
    ring = [[8.1, 47.1], [8.3, 47.1], [8.3, 47.25], [8.1, 47.25], [8.1, 47.1]]
    feature = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}}
    regions = {"type": "FeatureCollection", "features": [feature]}
    (place.folder / "regions.geojson").write_text(json.dumps(regions))
    rates, weights = Rates(publish=0.6), Weights(omega=0.3)
    actions = solve(Policies().process(rates, weights)).actions
    topics = {"plant/7/heat": TopicPolicy(actions, rates, weights)}
    write_policies(Policies(topics=topics), place.folder / "policies.json")
    assert "r leaves" in place.run(examples("plan show")[0]).stdout
    assert "slow regions" in (place.folder / "plan.svg").read_text()
    assert place.run(examples("plan diff")[0]).stdout.startswith("plan 1 -> 2")
    change = {"days": ["mon"], "at": "06:00", "plan": "plan.json"}
    schedule = {"format": "nearcast-schedule", "format_version": 1, "time_zone": "UTC"}
    schedule_file = place.folder / "schedule.json"
    schedule_file.write_text(json.dumps({**schedule, "changes": [change]}))
    shown = place.run("plan show schedule.json").stdout
    assert "06:00 mon" in shown
    assert "now              plan.json" in shown
    in_json = json.loads(place.run("plan show schedule.json --json").stdout)
    assert (in_json["in_force"], in_json["following"]) == ("plan.json", "plan.json")
    assert "plant/7/heat" in place.run(examples("policy show")[0]).stdout
    assert "<svg" in (place.folder / "policy.svg").read_text()


@runs("bench overlay")
def test_the_example_of_a_short_benchmark_works(place: Place):
    done = place.run(examples("bench overlay")[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout


# --- Spark ----------------------------------------------------------------------------------

START = datetime(2026, 5, 1, 8, tzinfo=UTC)


IN_TURN = """
import json, sys
from typer.testing import CliRunner
from nearcast.cli import app
done = [CliRunner().invoke(app, words) for words in json.load(sys.stdin)]
print(json.dumps([(one.exit_code, one.output + str(one.exception or "")) for one in done]))
"""


def write_cabs(path: Path) -> None:
    """Write cabs that stand for an hour, and then drive."""
    lines = ["time,cab,lon,lat"]
    for cab in range(4):
        for minute in range(90):
            far = max(0, minute - 60)
            lon, lat = 8.5 + 0.0005 * cab + 0.002 * far, 47.3 + 0.0001 * (minute % 3)
            lines.append(f"{(START + timedelta(minutes=minute)).isoformat()},c{cab},{lon},{lat}")
    path.write_text("\n".join(lines) + "\n")


def write_log(root: Path, node: str) -> None:
    """Write what a broker notes of walks, offers and readings that are retained."""
    start_ms = int(START.timestamp() * 1000)
    recorder = Recorder()
    recorder.subscription(start_ms, "ann", "plant/+", 0, is_added=True)
    for i in range(30):
        now = start_ms + 1000 * i
        recorder.events(1, now, 4, "machine", b"plant/1", b"hd21.5", 2)
        offer = json.dumps({"lon": 8.2 + 0.01 * i, "lat": 47.5, "price": 3}).encode()
        recorder.events(1, now, 0, "shop", b"shops/bakery", b"hd" + offer, 2)
        recorder.position("ann", 8.3 + 1e-4 * i, 47.4, now)
    write_segment(root, node, recorder)


def write_inputs(folder: Path) -> None:
    write_cabs(folder / "cabs.csv")
    for name, node in (("data", "n1"), ("a", "n2"), ("b", "n3")):
        write_log(folder / name / "eventlog", node)
    offers = {"event_id": [1, 2], "t": [START, START], "price": [3.0, 50.0]}
    events = pa.table(offers | {"lon": [8.2, 8.3], "lat": [47.5, 47.5]})
    subscriptions = pa.table({"subscription_id": [7], "where": ["price < 10"]})
    changes = subscriptions.append_column("is_active", pa.array([True]))
    for name in ("events", "changes"):
        (folder / name).mkdir()
    pq.write_table(events, folder / "events.parquet")
    pq.write_table(events, folder / "events" / "000.parquet")
    pq.write_table(subscriptions, folder / "subscriptions.parquet")
    pq.write_table(changes, folder / "changes" / "000.parquet")
    save_plan(a_plan(250, 1), folder / "plan.json")


@runs(*(f"pipeline {name}" for name in ("ingest", "regions", "match", "stream", "plan")))
@runs(*(f"pipeline {name}" for name in ("histogram", "train", "run", "audit", "whatif")))
@pytest.mark.spark
@pytest.mark.java
def test_the_examples_of_the_pipeline_work(place: Place):
    """In one process, so that Spark starts once. test_live_recipe runs a live source."""
    write_inputs(place.folder)
    place.run("init")
    with (place.folder / "nearcast.toml").open("a") as file:
        file.write('\n[[retained]]\ntopics = "plant/#"\nmode = "learned"\nhold = "10s"\n')

    def example(name: str) -> str:
        return examples(f"pipeline {name}")[0]

    steps = {
        example("ingest"): "360 positions in city/positions",
        example("regions"): "Map: city/regions.geojson",
        example("plan"): "Plan: city/plan.json",
        "pipeline ingest --space shops --input events.parquet --output city": "2 events",
        example("histogram"): "Histogram: city/histogram-shops.json",
        example("match"): "1 deliveries in found/deliveries",
        example("stream").replace("found", "streamed") + " --once": "Done: deliveries in streamed",
        example("train"): "Policies: data/policies.json",
        example("run"): "All in nightly.",
        example("audit"): "of 2 nodes",
        example("whatif"): "candidate",
    }
    asked = json.dumps([shlex.split(one) for one in steps])
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN],
        cwd=place.folder, env=ENVIRON, input=asked, capture_output=True, text=True,
        timeout=1_000, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (step, told), (code, output) in zip(
        steps.items(), json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        assert code == 0, (step, output)
        assert told in output, step
