"""Settings for the tests of the demonstration."""

from collections.abc import Iterator

import pytest
from tests.support.real_cluster import forked_nodes


@pytest.fixture(scope="session", autouse=True)
def _nodes_are_forked() -> Iterator[None]:
    with forked_nodes():
        yield
