"""`nearcast explain` of messages in causal order: whom they waited for, why one was discarded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.causal_forum import LIFETIME_MS, Forum
from tests.support.log_segments import write_segment
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.eventlog.records import Recorder
from nearcast.mqtt import Publish
from nearcast.simulator.network import SimulatedLink, constant

FAR_MS = 150


class LoggedForum(Forum):
    """Three nodes that keep an event log; n0 is far from n2. A client at each, and a listener."""

    def __init__(self) -> None:
        super().__init__(3, 1, "causal", SimulatedLink(delay=constant(2)), ("n0", "n1", "n2"))
        for node in self.nodes.values():
            node.node.state.log = Recorder()
        for number in range(3):
            self.guest(f"c{number}", f"n{number}")
        self.slow("n0", "n2", FAR_MS)

    def say_on(self, topic: str, name: str) -> None:
        self.clients[name].publish(Publish(topic, b'{"price": 1}', 1))
        self.turn(self.home[name])

    def explain(self, directory: Path, client: str, topic: str, *nodes: str) -> dict[str, Any]:
        """Return what the command says by the logs of some nodes."""
        options = []
        for name in nodes or self.names:
            folder = directory / name
            recorder = self.nodes[name].node.state.log
            assert isinstance(recorder, Recorder)
            write_segment(folder, name, recorder)
            options += ["--log", str(folder)]
        run = CliRunner().invoke(app, ["explain", client, "-t", topic, "--json", *options])
        found: dict[str, Any] = json.loads(run.output)
        assert run.exit_code == (0 if found["delivered"] else 1)
        return found


def step(found: dict[str, Any]) -> dict[str, Any]:
    (one,) = (each for each in found["steps"] if each["step"] == "order")
    return one  # type: ignore[no-any-return]


def test_a_message_that_waited_tells_for_whom_and_how_long(tmp_path: Path):
    forum = LoggedForum()
    forum.say_on("talk/question", "c0")
    forum.run(5)
    forum.say_on("talk/answer", "c1")
    forum.run(1_000)

    found = forum.explain(tmp_path, "c2", "talk/answer")

    assert found["delivered"]
    assert step(found)["ok"]
    told = r"it waited (\d+) ms at n2 for a message of n0 at [0-9:.]+, which came"
    match = re.fullmatch(told, step(found)["detail"])
    assert match, step(found)["detail"]
    assert FAR_MS - 10 <= int(match[1]) <= FAR_MS


def test_a_message_that_waited_for_one_that_was_lost_tells_so(tmp_path: Path):
    forum = LoggedForum()
    forum.world.network.cut("n0", "n2")
    forum.say_on("talk/question", "c0")
    forum.run(5)
    forum.say_on("talk/answer", "c1")
    forum.run(1_000)

    found = forum.explain(tmp_path, "c2", "talk/answer")

    assert found["delivered"]
    assert "which did not come in time" in step(found)["detail"]


def test_a_message_that_did_not_wait_tells_that_too(tmp_path: Path):
    forum = LoggedForum()
    forum.say_on("talk/question", "c0")
    forum.run(1_000)

    found = forum.explain(tmp_path, "c1", "talk/question")

    assert found["delivered"]
    assert step(found)["detail"].startswith("delivered at n1 at once")


def test_a_message_that_came_too_late_tells_why_it_was_discarded(tmp_path: Path):
    forum = LoggedForum()
    forum.slow("n0", "n2", LIFETIME_MS + 200)
    forum.say_on("talk/question", "c0")
    forum.run(3_000)

    found = forum.explain(tmp_path, "c2", "talk/question")

    assert not found["delivered"]
    assert found["because"].startswith(
        "order: n2 discarded it: it arrived after its lifetime (lifetime 400 ms, sent by n0 at "
    )


@pytest.mark.parametrize(("nodes", "told"), [(("n0", "n2"), "did not subscribe"), ((), "did not")])
def test_a_message_that_was_not_sent_to_the_clients_node_tells_where_it_went(
    tmp_path: Path, nodes: tuple[str, ...], told: str
):
    forum = LoggedForum()
    forum.clients["c2"].unsubscribe("talk/#")
    forum.turn("n2")
    forum.run(1_000)
    forum.say_on("talk/question", "c0")
    forum.run(1_000)

    found = forum.explain(tmp_path, "c2", "talk/question", *nodes)

    assert not found["delivered"]
    assert told in found["because"]
    assert "it was sent to n1" in found["because"]
