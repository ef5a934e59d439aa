"""`nearcast policy explain` asks a running broker; what it learned survives a restart."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import nearcast, served

from nearcast.broker import Broker, RetainedSettings
from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.mqtt import FilterRequest, Properties, Publish
from nearcast.server.learned.experience_file import FILE_NAME, SAVE_MS, ExperienceFile

TOML = """
[[retained]]
topics = "plant/#"
omega = 0.3

[[retained]]
topics = "store/#"
mode = "wait"
"""


@pytest.mark.server
def test_a_broker_says_what_it_would_do_with_a_newcomer(tmp_path: Path) -> None:
    (tmp_path / "nearcast.toml").write_text(TOML)
    options = ("--config", "nearcast.toml", "--port", "0", "--data", str(tmp_path / "data"))
    with served(*options, cwd=tmp_path) as ports:
        port = str(ports["tcp"])
        with BlockingClient(BrokerAddress(port=ports["tcp"], client_id="source")) as source:
            for number in range(12):
                stamp = Properties(user_properties=(("$created", f"{time.time():.3f}"),))
                source.publish(
                    [Publish("plant/heat", b"%d" % number, qos=1, retain=True, properties=stamp)]
                )
                time.sleep(0.05)
            for topic in ("store/door", "other/door"):
                source.publish([Publish(topic, b"open", qos=1, retain=True)])
        run = nearcast("policy", "explain", "plant/heat", "-p", port, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        assert "[[retained]] topics = plant/#: learned, at most 10 s" in run.stdout
        assert "its $created counts" in run.stdout
        told = nearcast("policy", "explain", "plant/heat", "-p", port, "--json", cwd=tmp_path)
        found: dict[str, Any] = json.loads(told.stdout)
        assert found["rates"]["publishes_seen"] == pytest.approx(12.0, abs=0.5)
        # A learned policy depends on the age of the message and the quiet since; these two do not.
        for topic, decision in (("store/door", "wait"), ("other/door", "send")):
            told = nearcast("policy", "explain", topic, "-p", port, "--json", cwd=tmp_path)
            assert json.loads(told.stdout)["decision"] == decision
            with BlockingClient(BrokerAddress(port=ports["tcp"], client_id="newcomer")) as newcomer:
                newcomer.subscribe(FilterRequest(topic, 1))
                copies = [one for one in newcomer.messages(0.3) if one.retain]
            assert bool(copies) == (decision == "send")
        bad = nearcast("policy", "explain", "plant/+", "-p", port, cwd=tmp_path)
        assert bad.returncode != 0
        assert "expected a topic, without + and #" in bad.stderr


# -- the file --------------------------------------------------------------------------------------


def holding() -> Any:
    return Broker(retained=[RetainedSettings(topics="#")]).deferred_retained


def test_experience_is_written_when_due_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "data" / FILE_NAME
    file = ExperienceFile(path, first := holding())
    file.save_if_due(5_000)
    file.save()
    assert not path.exists()  # nothing was learned
    first.groups.taken = 1
    file.save_if_due(5_000 + SAVE_MS - 1)
    assert not path.exists()
    file.save_if_due(5_000 + SAVE_MS)
    assert path.exists()
    path.unlink()
    file.save()
    assert not path.exists()  # nothing new
    first.groups.taken = 2
    file.save()
    ExperienceFile(path, holding()).load()


def test_a_damaged_file_is_set_aside_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE_NAME
    path.write_text('{"format": "nearcast-retained-exp')
    with caplog.at_level(logging.WARNING):
        ExperienceFile(path, holding()).load()

    assert "experience is learned anew" in caplog.text
    assert "Was it cut short?" in caplog.text
    assert not path.exists()
    assert path.with_name(FILE_NAME + ".refused").read_text().endswith("retained-exp")


def test_a_disk_that_cannot_be_written_is_told_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    file = ExperienceFile(tmp_path / "file" / FILE_NAME, one := holding())
    one.groups.taken = 1
    file.save()

    assert "experience could not be written" in caplog.text
