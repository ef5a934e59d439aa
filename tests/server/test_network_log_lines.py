"""What nodes and commands say about NATS: what is wrong, by its name, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.real_cluster import nats_with
from tests.support.waiting import WAIT_S, wait_for

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.connection import close, connect
from nearcast.server.cluster.nats_admin import look
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

pytestmark = pytest.mark.server


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[[str], ChildProcess]]:
    """Return what starts a NATS with a configuration of its own."""
    with ExitStack() as stack:
        yield lambda text: stack.enter_context(nats_with(tmp_path, text))


# --- encrypted connections ------------------------------------------------------------------


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_encrypted_connection_ends_without_a_word(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    start_nats: Callable[[str], ChildProcess],
    certificates: Path,
    caplog: pytest.LogCaptureFixture,
):
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    nats = start_nats('jetstream {store_dir: "STORE"}\ntls {' + files + "}")
    section = NetworkSection(
        join=[f"tls://127.0.0.1:{nats.port}"], authority=certificates / "ca.pem"
    )

    async def come_and_go() -> None:
        assert await look(section) == []
        client = await connect(section, "test", timeout_s=WAIT_S)
        nats.ask_to_end()
        async with asyncio.timeout(WAIT_S):
            await client.lost.wait()
        await close(client)

    with caplog.at_level(logging.INFO), asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(come_and_go())

    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.parametrize("text", [None, "no certificate"])
@pytest.mark.parametrize("name", ["authority", "certificate", "key"])
def test_a_file_for_encryption_that_cannot_be_read_is_named(
    name: str, text: str | None, certificates: Path, tmp_path: Path
):
    files: dict[str, Any] = {
        "authority": certificates / "ca.pem",
        "certificate": certificates / "ann.pem",
        "key": certificates / "ann.key",
    }
    files[name] = tmp_path / "bad.pem"
    if text is not None:
        files[name].write_text(text)
    section = NetworkSection(join=["tls://127.0.0.1:1"], **files)

    with pytest.raises(EnvironmentProblem, match="cannot be read") as told:
        asyncio.run(connect(section, "test"))

    said = str(told.value)
    if text is None:
        assert said.startswith(f"network.{name}, {files[name]}: ")
        assert "No such file" in said
    elif name != "key":
        assert said.startswith(f"network.{name}, {files[name]}: ")
    else:  # OpenSSL does not tell which of the two it does not like
        assert said.startswith(f"network.certificate, {files['certificate']}: ")


# --- a store that is full, a server that is not there ---------------------------------------


def test_a_store_without_room_for_the_feed_is_not_called_that_of_the_nodes(
    start_nats: Callable[[str], ChildProcess], tmp_path: Path
):
    nats = start_nats('jetstream {store_dir: "STORE", max_mem: 10MB, max_file: 10MB}')
    config = tmp_path / "fed.toml"
    config.write_text('[network]\nfeed = ["#"]\nfeed_size = "1GiB"\n')
    with LocalCluster(tmp_path / "fleet") as fleet:
        node = fleet.start_node("a", free_port(), f"nats://127.0.0.1:{nats.port}", config)
        fleet.wait_until_ready()
        wait_for(lambda: node.has_said("the feed stands still"))
        said = node.log.read_text()
    assert "the feed stands still, and waits: NATS: the stream of the feed is full (insuff" in said
    assert "key-value" not in said


def test_a_node_without_nats_says_so_in_whole_sentences(tmp_path: Path):
    with LocalCluster(tmp_path) as fleet:
        node = fleet.start_node("a", free_port(), f"nats://127.0.0.1:{free_port()}")
        fleet.wait_until_ready()
        wait_for(lambda: node.has_said("Trying on."))
        assert node.has_said("Is nats-server running there? Trying on.\n")
