"""The loop closed: a broker's log teaches, and the running broker does otherwise afterwards."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from hypothesis import settings
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession
from tests.support.commands import NEARCAST
from tests.support.forked import Forked
from tests.support.space_sections import placed_section
from tests.support.waiting import WAIT_S, wait_for
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.eventlog.records import Record
from nearcast.eventlog.segments import open_segments, read_segment
from nearcast.locality import load_plan
from nearcast.model.errors import EnvironmentProblem
from nearcast.pipeline.sources.event_logs import read_log
from nearcast.retained import Policies, read_policies, write_policies
from nearcast.server.local_cluster import ChildProcess, LocalCluster, find_nats_server, free_port

pytestmark = [pytest.mark.spark, pytest.mark.server]

CONFIG = (
    '[log]\nevents = "full"\n'
    + placed_section("shops", lon=(8, 9), lat=(47, 48))
    + """
[[retained]]
topics = "plant/#"
mode = "learned"
hold = "3s"
omega = 0.3
"""
)
PROBES = count()
IS_SOAK = settings.default is not None and settings.default.max_examples > 50


class Client:
    """A paho client that keeps what it gets."""

    def __init__(self, port: int, name: str) -> None:
        self.got: queue.Queue[tuple[str, bytes, bool]] = queue.Queue()
        self._answered = threading.Event()
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self.paho.on_message = lambda _c, _u, m: self.got.put((m.topic, bytes(m.payload), m.retain))
        self.paho.on_subscribe = lambda *_: self._answered.set()
        self.paho.connect("127.0.0.1", port)
        self.paho.loop_start()

    def subscribe(self, topic_filter: str) -> None:
        self._answered.clear()
        self.paho.subscribe(topic_filter, 1)
        assert self._answered.wait(WAIT_S)

    def publish(self, topic: str, payload: Any, *, retain: bool = False) -> None:
        self.paho.publish(topic, json.dumps(payload), 1, retain=retain).wait_for_publish(WAIT_S)

    def first(self) -> tuple[str, bytes, bool]:
        return self.got.get(timeout=WAIT_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def broker(folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes], Path]]:
    """Run a broker of its own; give its port, its process and what it says."""
    config, said, port = folder / "nearcast.toml", folder / "broker.log", free_port()
    config.write_text(CONFIG)
    options = ["--config", str(config), "--port", str(port), "--data", str(folder / "data")]
    with said.open("wb") as file:
        process = Forked([*NEARCAST, "serve", *options], stdout=file, stderr=file)
    try:
        wait_for(lambda: b"Ready." in said.read_bytes() or process.poll() is not None, 2 * WAIT_S)
        yield port, process, said
    finally:
        process.terminate()
        process.wait(WAIT_S)


class News:
    """A machine that tells its state ten times a second, for as long as the body runs."""

    def __init__(self, port: int) -> None:
        self._client = Client(port, "machine")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell)
        self._told_s: list[float] = []

    def _tell(self) -> None:
        count = 0
        while not self._end.wait(0.1):
            for topic in ("plant/heat", "plant/flow"):
                self._client.publish(topic, count, retain=True)
            count += 1
            self._told_s.append(time.monotonic())

    def rate(self) -> float:
        """Return how often a second it has told so far: less on a slow machine."""
        return (len(self._told_s) - 1) / (self._told_s[-1] - self._told_s[0])

    def __enter__(self) -> "News":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._client.close()


def newcomer(port: int, name: str) -> bool:
    """Subscribe; tell whether the first message was the retained copy."""
    client = Client(port, name)
    client.subscribe("plant/heat")
    _, _, is_copy = client.first()
    client.close()
    return is_copy


def walk_about(port: int, steps: int = 12) -> None:
    """Let four people walk, one a second's worth of metres at a time, and a shop call out."""
    walkers = [Client(port, f"walker{n}") for n in range(4)]
    shop = Client(port, "shop")
    for step in range(steps):
        for n, walker in enumerate(walkers):
            place = {"lon": 8.5 + 1e-5 * step * (n + 1), "lat": 47.3 + 0.003 * n}
            walker.publish("$position", place)
        shop.publish("shops/bakery", {"lon": 8.5, "lat": 47.3 + 0.001 * step})
        time.sleep(0.15)
    for client in (*walkers, shop):
        client.close()


def retained(log: Path, client: str) -> list[bytes]:
    """Return what the log has by now on retained messages for a client."""
    return [
        body
        for path in open_segments(log)
        for kind, body in read_segment(path)
        if kind is Record.RETAINED and client.encode() in body
    ]


def choices(spark: SparkSession, log: Path, client: str) -> list[str]:
    rows = read_log(spark, str(log), "retained").where(f"client = '{client}'").orderBy("sequence")
    return [row["choice"] for row in rows.collect()]


def nearcast(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def lesson(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Let a broker run, learn from its log, and let it run on; return what was seen."""
    folder = tmp_path_factory.mktemp("loop")
    data, output = folder / "data", folder / "nightly"
    data.mkdir()
    write_policies(Policies(), data / "policies.json")  # no policy at all: MQTT's way
    with broker(folder) as (port, process, said), News(port) as news:
        walk_about(port)
        before = newcomer(port, "before")
        wait_for(lambda: len(retained(data / "eventlog", "before")) == 1)
        rate = news.rate()
        asked = [
            *("--input", str(data / "eventlog"), "--output", str(output)),
            *("--config", str(folder / "nearcast.toml"), "--brokers", "2", "--capacity", "0.3"),
            *("--policies", str(data / "policies.json"), "--refit", "never", "--json"),
        ]
        report = json.loads(nearcast("pipeline", "run", *asked))
        os.kill(process.pid, signal.SIGHUP)
        wait_for(lambda: b"policies.json: 2 topics" in said.read_bytes())
        after = newcomer(port, "after")
        wait_for(lambda: len(retained(data / "eventlog", "after")) == 2)
        noted = {name: choices(spark, data / "eventlog", name) for name in ("before", "after")}
    return {"folder": folder, "output": output, "before": before, "after": after, "rate": rate,
            "noted": noted, "steps": {step["name"]: step for step in report["steps"]}}  # fmt: skip


def test_a_newcomer_got_a_copy_before_and_waits_for_the_next_message_afterwards(
    lesson: dict[str, Any],
):
    tables = read_policies(lesson["folder"] / "data" / "policies.json").topics
    assert set(tables) == {"plant/heat", "plant/flow"}
    step_s = 0.3  # a tenth of `hold`
    assert tables["plant/heat"].rates.publish == pytest.approx(step_s * lesson["rate"], rel=0.5)
    assert lesson["before"]
    assert not lesson["after"]
    assert lesson["noted"]["before"] == ["sent_now"]
    assert lesson["noted"]["after"] == ["held_back", "replaced"]


def test_all_jobs_have_learned_from_the_log(lesson: dict[str, Any]):
    steps = lesson["steps"]
    assert all(step["summary"] is not None for step in steps.values())
    assert steps["ingest"]["summary"]["kept"] == 48
    assert steps["histogram"]["summary"]["shops"]["events"] == 12
    assert steps["audit"]["summary"]["faults"]["lost"] == 0
    assert steps["audit"]["summary"]["faults"]["doubled"] == 0


@contextmanager
def two_nodes(directory: Path, config: Path) -> Iterator[tuple[str, list[int], list[ChildProcess]]]:
    """Run two nodes; yield the address of NATS, their ports, and their processes."""
    try:
        find_nats_server()
    except EnvironmentProblem:
        pytest.skip("nats-server is not installed (make setup)")
    with LocalCluster(directory) as fleet:
        address, ports = fleet.start_nats(free_port()), [free_port(), free_port()]
        children = [
            fleet.start_node(name, port, address, config)
            for name, port in zip("ab", ports, strict=True)
        ]
        fleet.wait_until_ready()
        wait_for(lambda: len(json.loads(nearcast("nodes", "--join", address, "--json"))) == 2)
        yield address, ports, children


def test_a_running_network_takes_up_the_plan(lesson: dict[str, Any], tmp_path: Path):
    path = lesson["output"] / "plan.json"
    plan = load_plan(path)
    assert set(plan.brokers or ()) == {0, 1}
    with ExitStack() as stack:
        config = lesson["folder"] / "nearcast.toml"
        address, ports, children = stack.enter_context(two_nodes(tmp_path, config))
        told = nearcast("nodes", "--join", address, "--plan", str(path))
        assert told.strip() == f"Plan {plan.version} is shared with a, b."
        for child in children:
            wait_for(lambda child=child: child.has_said(f"plan {plan.version} is taken up"))  # type: ignore[misc]
        walker, shop = Client(ports[0], "walker"), Client(ports[1], "shop")
        stack.callback(walker.close)
        stack.callback(shop.close)
        walker.subscribe("$near/500m/shops/#")
        for lat in (47.3, 47.309):  # leaves of the two brokers
            walker.publish("$position", {"lon": 8.5, "lat": lat})
            wait_for(lambda: is_known(shop, walker, lat))  # noqa: B023 - right here
            shop.publish("shops/far", {"lon": 8.5, "lat": 47.9})
            shop.publish(f"shops/{lat}", {"lon": 8.5, "lat": lat})
            heard = iter(lambda: walker.first()[0], None)
            assert next(one for one in heard if "probe" not in one) == f"shops/{lat}"


def test_a_run_that_shares_changes_how_a_running_cluster_decides(
    lesson: dict[str, Any], tmp_path: Path
):
    with ExitStack() as stack:
        config = lesson["folder"] / "nearcast.toml"
        address, ports, children = stack.enter_context(two_nodes(tmp_path, config))
        write_policies(Policies(), tmp_path / "none.json")
        nearcast("nodes", "--join", address, "--policies", str(tmp_path / "none.json"))
        for child in children:
            wait_for(lambda child=child: child.has_said("policies of the network are used: 0"))  # type: ignore[misc]
        output = tmp_path / "nightly"
        asked = [
            *("--input", str(lesson["folder"] / "data" / "eventlog"), "--output", str(output)),
            *("--config", str(config), "--capacity", "0.3", "--refit", "never", "--no-audit"),
            *("--brokers", "2", "--share", "--join", address, "--json"),
        ]
        with News(ports[0]):
            wait_for(lambda: newcomer(ports[0], "before"))  # a copy, once there is one
            shared = json.loads(nearcast("pipeline", "run", *asked))["shared"]
            assert (shared["plan"], shared["policies"], shared["histograms"]) == (1, 2, 1)
            for child in children:
                for said in (
                    "plan 1 is taken up",
                    "policies of the network are used: 2 topics",
                    "histograms of the network are used: shops",
                ):
                    wait_for(lambda child=child, said=said: child.has_said(said))  # type: ignore[misc]
            assert not newcomer(ports[0], "after")
        plan = load_plan(output / "plan.json")
        assert plan.nodes == ("a", "b")
        assert set(plan.brokers or ()) == {0, 1}
        told = nearcast("nodes", "--join", address, "--plan", str(output / "plan.json"))
        assert told == "Plan 1 is what the cluster has already.\n"
        if IS_SOAK:  # the same log: the same plan; test_plans.py has it without a cluster
            again = json.loads(nearcast("pipeline", "run", *asked))
            assert again["shared"]["plan"] == 1
            assert load_plan(output / "plan.json") == plan


def is_known(shop: Client, walker: Client, lat: float) -> bool:
    """Tell whether the shop's node has heard where the walker is by now."""
    probe = f"shops/probe{next(PROBES)}"
    shop.publish(probe, {"lon": 8.5, "lat": lat})
    with suppress(queue.Empty):
        while walker.got.get(timeout=0.2)[0] != probe:
            pass  # an earlier one
        return True
    return False
