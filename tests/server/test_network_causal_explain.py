"""Real nodes: `nearcast explain` reads from their event logs who waited, and what was discarded."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import nearcast
from tests.support.real_cluster import PahoClient, RealCluster
from tests.support.waiting import START_S, wait_for

pytestmark = pytest.mark.server

LIFETIME_MS, LONG_MS, FAR_MS = 400, 4_000, 600
CONFIG = """
[log]
events = "full"
[[space]]
name = "talk"
topics = "talk/#"
order = "causal"
lifetime = "%d ms"
[space.attributes]
number = { low = 0, high = 1000 }
"""
FAR_FROM_A = f"""
import asyncio
from nearcast.server.cluster import runtime
received = runtime.ClusterRuntime._received
def later(self, sender, data):
    if sender == "a":
        asyncio.get_running_loop().call_later({FAR_MS / 1000}, received, self, sender, data)
    else:
        received(self, sender, data)
runtime.ClusterRuntime._received = later
"""
EVENT = b'{"number": 1}'


def explained(client: str, topic: str, *directories: Path) -> dict[str, Any]:
    """Return what the command says by the event logs of some nodes."""
    options = [one for path in directories for one in ("--log", str(path / "eventlog"))]
    done = nearcast("explain", client, "-t", topic, "--json", *options)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def publish_until_heard(publisher: PahoClient, listener: PahoClient) -> None:
    """Groups send nothing until a lifetime after their start."""
    deadline = time.monotonic() + 60
    heard: list[Any] = []
    while not heard and time.monotonic() < deadline:
        publisher.publish("talk/early", EVENT, 1)
        heard = listener.rest(0.5)
    assert heard


def order_of(found: dict[str, Any]) -> str:
    """Return what causal order did to the message."""
    (one,) = (each for each in found["steps"] if each["step"] == "order")
    return str(one["detail"])


def test_the_logs_of_real_nodes_tell_why_a_message_was_discarded(tmp_path: Path):
    with RealCluster(tmp_path, CONFIG % LIFETIME_MS) as cluster:
        cluster.start("a", "b")
        cluster.join("a", "b")
        listener = cluster.client("b", "bob")
        listener.subscribe("talk/#", 1)
        publisher = cluster.client("a", "anna")
        publish_until_heard(publisher, listener)
        node = cluster.node("b")
        os.kill(node.pid, signal.SIGSTOP)
        publisher.publish("talk/late", EVENT, 1)
        time.sleep(3 * LIFETIME_MS / 1000)
        os.kill(node.pid, signal.SIGCONT)
        assert "talk/late" not in [topic for topic, *_ in listener.rest(2.0)]
        cluster.end("a", "b")

        both = [tmp_path / "a", tmp_path / "b"]
        late = explained("bob", "talk/late", *both)
        assert not late["delivered"]
        told = "order: b discarded it: it arrived after its lifetime (lifetime 400 ms, sent by a"
        assert late["because"].startswith(told)
        early = explained("bob", "talk/early", *both)
        assert early["delivered"]
        assert order_of(early).startswith("delivered at b at once")


def test_the_logs_of_real_nodes_tell_for_whom_a_message_waited(tmp_path: Path):
    """What node a sends comes late to node c, and the answer of node b does not."""
    with RealCluster(tmp_path, CONFIG % LONG_MS) as cluster:
        cluster.start("a", "b")
        far = cluster.begin("c", FAR_FROM_A)
        wait_for(lambda: far.has_said("Ready."), START_S)
        cluster.join("a", "b", "c")
        bob, carol = cluster.client("b", "bob"), cluster.client("c", "carol")
        bob.subscribe("talk/#", 1)
        carol.subscribe("talk/#", 1)
        anna = cluster.client("a", "anna")
        publish_until_heard(anna, carol)
        bob.rest(1.0)
        anna.publish("talk/question", EVENT, 1)
        bob.take(1)
        bob.publish("talk/answer", EVENT, 1)
        heard = [topic for topic, *_ in carol.rest(3.0)]
        cluster.end("a", "b", "c")

        assert [one for one in heard if one != "talk/early"] == ["talk/question", "talk/answer"]
        found = explained("carol", "talk/answer", *(tmp_path / name for name in "abc"))
        assert found["delivered"]
        told = r"it waited (\d+) ms at c for a message of a at [0-9:.]+, which came"
        match = re.fullmatch(told, order_of(found))
        assert match, order_of(found)
        assert 0 < int(match[1]) <= LONG_MS
