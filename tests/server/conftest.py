"""Real broker processes for tests."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.real_cluster import forked_nodes, nats_with
from tests.support.waiting import WAIT_S

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.connection import NatsConnection, close, connect
from nearcast.server.cluster import nats_members
from nearcast.server.local_cluster import LocalCluster, find_nats_server, free_port


@pytest.fixture(scope="session", autouse=True)
def _nodes_are_forked() -> Iterator[None]:
    with forked_nodes():
        yield


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    brokers: list[BrokerProcess] = []

    def start(**sections: Any) -> BrokerProcess:
        directory = tmp_path / f"broker{len(brokers)}"
        directory.mkdir()
        broker = BrokerProcess(directory, **sections)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        broker.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def all_listeners(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path
) -> Iterator[BrokerProcess]:
    """Return a broker that listens in all four ways, one for all tests of a file."""
    files = {
        "certificate": str(certificates / "server.pem"),
        "key": str(certificates / "server.key"),
    }
    broker = BrokerProcess(
        tmp_path_factory.mktemp("listeners"),
        listener=[
            {"kind": "tcp", "port": 0},
            {"kind": "tls", "port": 0, **files},
            {"kind": "ws", "port": 0},
            {"kind": "wss", "port": 0, **files},
        ],
    )
    yield broker.start()
    broker.end(signal.SIGKILL)


@pytest.fixture
def _lasting_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no entry expire because this machine stood still."""
    monkeypatch.setattr(nats_members, "EXPIRY_S", 2 * WAIT_S)


@pytest.fixture(scope="module")
def nats_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("nats")) as fleet:
        yield fleet.start_nats(free_port())


@pytest.fixture
def special_nats(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return what starts a NATS with a configuration of its own, and gives its address."""
    with ExitStack() as stack:

        def start(text: str = "", *options: str) -> str:
            child = stack.enter_context(nats_with(tmp_path, text, *options))
            return f"nats://127.0.0.1:{child.port}"

        yield start


_networks = iter(range(1_000))


@pytest.fixture
def section(nats_address: str) -> NetworkSection:
    return NetworkSection(join=[nats_address], name=f"test{next(_networks)}")


@pytest.fixture
async def client(section: NetworkSection) -> AsyncIterator[NatsConnection]:
    connection = await connect(section, "test", timeout_s=WAIT_S)
    yield connection
    await close(connection)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a NATS, by name, where there is none; `make setup` installs it."""
    try:
        find_nats_server()
    except EnvironmentProblem:
        missing = pytest.mark.skip(reason="nats-server is not installed (make setup)")
        for item in items:
            if item.path.name.startswith("test_network"):
                item.add_marker(missing)
