"""The policy file of a running broker: read at the start, on SIGHUP, and refused if it is bad."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearcast.broker import Broker, Connection
from nearcast.config import (
    Configuration,
    DurabilitySection,
    ListenerSection,
    NodeSection,
    RetainedSection,
)
from nearcast.mqtt import Connect, FilterRequest, Subscribe, encode_packet
from nearcast.retained import Policies, policies_to_text, write_policies
from nearcast.server import Server
from nearcast.server.learned.policy_file import PolicyFile
from nearcast.server.learned.retained_learning import learn_tables

pytestmark = pytest.mark.server

QUICK = RetainedSection(topics="quick/#", mode="learned", hold=2.0, omega=0.3)


def server(tmp_path: Path, *retained: RetainedSection) -> Server:
    return Server(
        Configuration(
            node=NodeSection(data=tmp_path),
            listener=[ListenerSection(port=0)],
            durability=DurabilitySection(mode="off"),
            retained=list(retained),
        )
    )


def test_a_broker_without_such_topics_reads_no_policies(tmp_path: Path) -> None:
    (tmp_path / "policies.json").write_text("nonsense")
    assert server(tmp_path).node.deferred_retained is None
    assert server(tmp_path)._learned._policies is None


def test_the_settings_reach_the_node(tmp_path: Path) -> None:
    one = server(tmp_path, RetainedSection(topics="quick/off", mode="immediate"), QUICK)
    assert one.node.deferred_retained is not None
    setting = one.node.deferred_retained.setting_of("quick/a")
    assert (setting.mode.value, setting.hold_max_s, setting.weights.omega) == ("learned", 2.0, 0.3)
    assert one.node.deferred_retained.setting_of("quick/off").mode.value == "immediate"
    assert one.node.deferred_retained.setting_of("slow").mode.value == "immediate"


def test_a_file_is_read_once_for_each_version_of_it(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    file = PolicyFile(path)
    assert file.take_changed() is None
    write_policies(Policies(discount=0.5), path)
    found = file.take_changed()
    assert found is not None
    assert found.discount == 0.5
    assert file.take_changed() is None


def test_a_bad_file_is_refused_once_and_the_next_good_one_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policies.json"
    file = PolicyFile(path)
    text = policies_to_text(Policies())
    for bad in (text.replace('"version": 1', '"version": 2'), text[:50], "\udcff", "[]"):
        path.write_bytes(bad.encode(errors="surrogateescape"))
        with caplog.at_level(logging.ERROR):
            assert file.take_changed() is None
            assert file.take_changed() is None
        (record,) = caplog.records
        assert "refused" in record.message
        assert "policies.json" in record.message
        caplog.clear()
    write_policies(Policies(), path)
    assert file.take_changed() is not None


def test_a_folder_in_its_place_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "policies.json").mkdir()
    assert PolicyFile(tmp_path / "policies.json").take_changed() is None
    assert "refused" in caplog.text


def test_without_its_file_the_broker_goes_back_to_the_policy_that_comes_with_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "policies.json"
    write_policies(Policies(), path)
    file = PolicyFile(path)
    first = file.take_changed()
    assert first is not None
    assert first.general is None
    path.unlink()
    second = file.take_changed()
    assert second is not None
    assert second.general is not None


async def test_a_changed_file_is_loaded_without_a_signal_until_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nearcast.server.learned.artefacts.CHECK_S", 0.01)
    one = server(tmp_path, QUICK)
    await one.start()
    with caplog.at_level(logging.INFO):
        write_policies(Policies(), tmp_path / "policies.json")
        async with asyncio.timeout(60):
            while "policies read from" not in caplog.text:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        alarm = one._learned._alarm
        await one.stop()
        caplog.clear()
        (tmp_path / "policies.json").unlink()
    assert alarm is not None
    assert alarm.cancelled()  # its next check, of which there is one at a time
    assert "policy file is gone" not in caplog.text


def test_a_running_broker_takes_another_file_on_sighup(
    start_broker: Callable[..., Any],
) -> None:
    retained = [{"topics": "quick/#", "mode": "learned", "hold": 2.0}]
    broker = start_broker(retained=retained)
    Path(broker.reload_path).write_text(json.dumps(broker.sections))
    path = broker.directory / "policies.json"
    path.write_text("{}")
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_until_said("policy file was refused")
    assert "another kind of file" in broker.said()
    write_policies(Policies(), path)
    Path(broker.reload_path).write_text(json.dumps({**broker.sections, "log": {"format": "json"}}))
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_until_said("needs a restart: log.format")
    assert broker.end().count("refused") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": "a/#/b"},
        {"topics": "a+"},
        {"topics": ""},
        {"topics": "a", "mode": "never"},
        {"topics": "a", "hold": 0.0},
        {"topics": "a", "hold": "2h"},
        {"topics": "a", "omega": 1.5},
        {"topics": "a", "cost": -1.0},
        {"mode": "wait"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="retained"):
        Configuration.model_validate({"retained": [wrong]})


def test_lengths_of_time_are_written_as_everywhere() -> None:
    found = Configuration.model_validate({"retained": [{"topics": "+/a/#", "hold": "250ms"}]})
    assert found.retained[0].hold == 0.25


def test_a_broker_that_may_learns_a_table_of_its_own(tmp_path: Path) -> None:
    asked = QUICK.model_copy(update={"learn": 1})
    one = server(tmp_path, asked)
    node, holding = one.node, one.node.deferred_retained
    assert holding is not None
    node.load_policies(Policies(), 0)  # nothing to decide by: plain MQTT
    now_ms = 0
    for now_ms in range(0, 60_000, 500):
        node.publish("quick/a", b"x", now_ms=now_ms, retain=True)
    newcomer(node, "first", now_ms)
    assert holding.waiting == 0

    async def learn() -> None:
        task = asyncio.create_task(learn_tables(node, lambda: now_ms, pause_s=0.01))
        async with asyncio.timeout(120):
            while not node.counters.tables_learned:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(learn())
    newcomer(node, "second", now_ms)
    assert holding.waiting == 1


def newcomer(node: Broker, name: str, now_ms: int) -> None:
    connection = Connection(address="127.0.0.1:1", listener="0")
    node.open(connection, now_ms)
    for packet in (Connect(client_id=name), Subscribe(1, (FilterRequest("quick/a"),))):
        node.receive(connection, encode_packet(packet), now_ms)
