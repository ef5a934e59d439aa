"""A configuration read again: what takes effect at once, what waits, what is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearcast.broker import Connection
from nearcast.config import (
    AuthSection,
    Configuration,
    DurabilitySection,
    LimitsSection,
    ListenerSection,
    LogSection,
    NodeSection,
    RuleSection,
)
from nearcast.model.errors import EnvironmentProblem
from nearcast.server import Server
from nearcast.server.config_reload import changed_keys, merged

pytestmark = pytest.mark.server


def configuration(tmp_path: Path, **sections: Any) -> Configuration:
    base: dict[str, Any] = {
        "node": NodeSection(data=tmp_path / "data"),
        "listener": [ListenerSection(port=0)],
        "durability": DurabilitySection(mode="off"),
    }
    return Configuration(**{**base, **sections})


def test_keys_that_differ_are_named(tmp_path: Path) -> None:
    old = configuration(tmp_path)
    new = configuration(
        tmp_path,
        limits=LimitsSection(queue=1 << 20, packet=5_000),
        log=LogSection(level="debug"),
        listener=[ListenerSection(port=9)],
    )

    assert set(changed_keys(old, new)) == {"listener", "limits.packet", "limits.queue", "log.level"}
    assert changed_keys(old, old.model_copy(deep=True)) == []


def test_only_what_takes_effect_at_once_is_taken_over(tmp_path: Path) -> None:
    old = configuration(tmp_path)
    limits = LimitsSection(queue=1 << 20, packet=5_000, connections=7)
    new = configuration(tmp_path, limits=limits, durability=DurabilitySection(mode="process"))
    force, now, later = merged(old, new)

    assert set(now) == {"limits.queue", "limits.connections"}
    assert set(later) == {"limits.packet", "durability.mode"}
    assert force.limits == LimitsSection(queue=1 << 20, connections=7)
    assert force.durability.mode == "off"
    assert merged(force, new)[1:] == ([], later)  # and those are named again the next time


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [("sampled", "full", False), ("full", "sampled", False), ("off", "full", True)],
)
def test_the_event_log_changes_its_share_but_is_not_opened(
    tmp_path: Path, before: Any, after: Any, waits: bool
) -> None:
    old = configuration(tmp_path, log=LogSection(events=before))
    new = configuration(tmp_path, log=LogSection(events=after))
    force, _, later = merged(old, new)

    assert later == (["log.events"] if waits else [])
    assert force.log.events == (before if waits else after)


async def test_limits_take_effect_in_a_running_node(tmp_path: Path) -> None:
    server = Server(configuration(tmp_path))
    limits = LimitsSection(queue=1_000, total_queue=2_000, connections=3, keep_alive=9.0)
    server.reload(configuration(tmp_path, limits=limits))
    settings = server.node.state.settings

    assert (settings.session_queue_bytes, settings.total_queue_bytes) == (1_000, 2_000)
    assert (settings.max_connections, settings.keep_alive_s) == (3, 9)
    assert server.node._delivery._session_limit == 1_000
    assert server.node._delivery._total_limit == 2_000


async def test_rules_are_for_clients_and_not_for_other_nodes(tmp_path: Path) -> None:
    server = Server(configuration(tmp_path))
    other = server.node.peering.attach("b", "1", 0)
    client = Connection()
    server.node.open(client, 0)
    server.reload(configuration(tmp_path, auth=AuthSection(rules=[RuleSection(client="c")])))

    assert client.permits == {}
    assert other.permits is None


async def test_a_reload_that_fails_changes_nothing(tmp_path: Path) -> None:
    server = Server(configuration(tmp_path))
    before, settings = server.configuration, server.node.state.settings
    bad = configuration(
        tmp_path,
        limits=LimitsSection(connections=3),
        auth=AuthSection(users=tmp_path / "missing"),
    )
    with pytest.raises(EnvironmentProblem):
        server.reload(bad)

    assert server.configuration is before
    assert server.node.state.settings is settings


def test_the_log_says_what_changed_what_waits_and_what_was_refused(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    changed = {
        **broker.sections,
        "limits": {"connections": 500, "queue": 4 << 20},
        "durability": {"mode": "process"},
        "log": {"level": "info"},
    }
    for text, words in (
        (json.dumps({"limits": {"queue": -1}}), "refused, the old one stays"),
        (json.dumps(changed), "needs a restart: durability.mode"),
    ):
        Path(broker.reload_path).write_text(text)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_until_said(words)
