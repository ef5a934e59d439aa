"""Starting a fleet: who has ended is told of, and who still runs is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nearcast.model.errors import EnvironmentProblem
from nearcast.server import local_cluster
from nearcast.server.local_cluster import LocalCluster, free_port

pytestmark = pytest.mark.server

BUSY = """
import pathlib, time
while not pathlib.Path({path!r}).exists():
    time.sleep(0.01)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "fleet") as fleet:
        yield fleet


def test_a_node_that_runs_and_is_never_ready_is_not_said_to_have_ended(
    fleet: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local_cluster, "_START_S", 0.1)
    node = fleet.start_node("a", free_port(), None, prelude=BUSY.format(path=str(tmp_path / "no")))

    with pytest.raises(
        EnvironmentProblem, match=r"a runs, but is not ready yet: it has said nothing"
    ):
        fleet.wait_until_ready()

    assert node.is_alive


def test_a_node_that_ends_is_not_waited_for(fleet: LocalCluster):
    fleet.start_node("a", free_port(), None, prelude="raise SystemExit('no more')")

    with pytest.raises(EnvironmentProblem, match=r"a does not start \(exit code 1\): no more"):
        fleet.wait_until_ready()
