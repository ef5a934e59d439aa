"""Real nodes: `nearcast explain` reads from their event logs why a message was discarded."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import nearcast
from tests.support.real_cluster import RealCluster

pytestmark = pytest.mark.server

LIFETIME_S = 0.4
CONFIG = """
[log]
events = "full"
[[space]]
name = "talk"
topics = "talk/#"
order = "causal"
lifetime = "400 ms"
[space.attributes]
number = { low = 0, high = 1000 }
"""
EVENT = b'{"number": 1}'


def explained(client: str, topic: str, *directories: Path) -> dict[str, Any]:
    """Return what the command says by the event logs of some nodes."""
    options = [one for path in directories for one in ("--log", str(path / "eventlog"))]
    done = nearcast("explain", client, "-t", topic, "--json", *options)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_logs_of_real_nodes_tell_why_a_message_was_discarded(tmp_path: Path):
    with RealCluster(tmp_path, CONFIG) as cluster:
        cluster.start("a", "b")
        cluster.join("a", "b")
        listener = cluster.client("b", "bob")
        listener.subscribe("talk/#", 1)
        publisher = cluster.client("a", "anna")
        deadline = time.monotonic() + 30
        while not (first := listener.rest(0.5)) and time.monotonic() < deadline:
            publisher.publish("talk/early", EVENT, 1)
        assert first  # groups send nothing until a lifetime after their start
        node = cluster.node("b")
        os.kill(node.pid, signal.SIGSTOP)
        publisher.publish("talk/late", EVENT, 1)
        time.sleep(3 * LIFETIME_S)
        os.kill(node.pid, signal.SIGCONT)
        assert "talk/late" not in [topic for topic, *_ in listener.rest(2.0)]
        cluster.end("a", "b")

        both = [tmp_path / "a", tmp_path / "b"]
        late = explained("bob", "talk/late", *both)
        assert not late["delivered"]
        told = "order: b discarded it: it arrived after its lifetime (lifetime 400 ms, sent by a at "
        assert late["because"].startswith(told)
        early = explained("bob", "talk/early", *both)
        assert early["delivered"]
        (order,) = (one for one in early["steps"] if one["step"] == "order")
        assert order["detail"].startswith("delivered at b at once")
