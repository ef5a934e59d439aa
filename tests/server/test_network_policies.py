"""Policies that a network shares: they reach running nodes, and nodes that come later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import nearcast
from tests.support.waiting import wait_for

from nearcast.config import NetworkSection
from nearcast.model.errors import FileFormatError
from nearcast.nats.connection import close, connect
from nearcast.retained import Policies, policies_to_text, write_policies
from nearcast.server.cluster.nats_members import open_bucket
from nearcast.server.cluster.nats_settings import POLICIES, SharedSettings
from nearcast.server.cluster.nats_sharing import share_policies
from nearcast.server.learned.policy_file import PolicyFile
from nearcast.server.local_cluster import LocalCluster, free_port

pytestmark = pytest.mark.server

LEARNED = '[[retained]]\ntopics = "quick/#"\nmode = "learned"\n'


def shared(**settings: Any) -> bytes:
    return policies_to_text(Policies(**settings)).encode()


def test_what_the_network_shares_decides_where_there_is_no_file(tmp_path: Path):
    file = PolicyFile(tmp_path / "policies.json")
    assert file.take_changed() is None

    taken = file.take_shared(shared(discount=0.5))

    assert taken is not None
    assert taken.discount == 0.5
    assert file.take_changed() is None


def test_a_file_comes_first_and_the_network_again_once_it_is_gone(tmp_path: Path):
    path = tmp_path / "policies.json"
    file = PolicyFile(path)
    write_policies(Policies(discount=0.25), path)
    own = file.take_changed()
    assert own is not None
    assert own.discount == 0.25

    assert file.take_shared(shared(discount=0.5)) is None
    path.unlink()
    back = file.take_changed()

    assert back is not None
    assert back.discount == 0.5


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", shared()[:40]])
def test_what_is_no_policy_file_is_refused_and_the_old_one_stays(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "policies.json"
    file = PolicyFile(path)
    file.take_shared(shared(discount=0.5))

    assert file.take_shared(data) is None

    assert "refused, the old ones stay" in caplog.text
    write_policies(Policies(), path)
    file.take_changed()
    path.unlink()
    back = file.take_changed()
    assert back is not None
    assert back.discount == 0.5


def test_what_is_no_policy_file_is_not_shared():
    nowhere = NetworkSection(join=["nats://127.0.0.1:1"])
    with pytest.raises(FileFormatError):
        asyncio.run(share_policies(nowhere, "{}"))


def nodes_command(address: str, *options: str) -> tuple[int, str]:
    done = nearcast("nodes", "--join", address, *options, COLUMNS="200")
    return done.returncode, done.stdout + done.stderr


async def put(address: str, data: bytes) -> None:
    section = NetworkSection(join=[address])
    client = await connect(section, "test", timeout_s=30)
    kept = await open_bucket(client, section, expires=False)
    await SharedSettings(client, kept).put(POLICIES, data, at_ms=0)
    await close(client)


def test_the_command_reaches_running_nodes_and_those_that_come_later(tmp_path: Path):
    config, path = tmp_path / "nearcast.toml", tmp_path / "new.json"
    config.write_text(LEARNED)
    write_policies(Policies(discount=0.5), path)
    (tmp_path / "own").mkdir()
    write_policies(Policies(), tmp_path / "own" / "policies.json")
    with LocalCluster(tmp_path) as fleet:
        address = fleet.start_nats(free_port())
        first, own = (fleet.start_node(name, free_port(), address, config) for name in ("a", "own"))
        fleet.wait_until_ready()

        assert nodes_command(address, "--policies", str(path)) == (0, "Policies 1 are shared.\n")
        wait_for(lambda: first.has_said("policies of the network are used: 0 topics"))
        wait_for(lambda: own.has_said("this node's own file decides"))

        code, said = nodes_command(address, "--policies", str(config))
        assert code == 4  # a file that is none
        assert "nearcast.toml" in said
        asyncio.run(put(address, b"no policies"))
        wait_for(lambda: first.has_said("policies were refused, the old ones stay"))

        asyncio.run(put(address, shared(discount=0.75)))
        late = fleet.start_node("late", free_port(), address, config)
        wait_for(lambda: late.has_said("policies of the network are used"))
