"""The examples in the documentation do what it says they do."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import nearcast.locality

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["qr-network.md", "simulator.md"])
def test_the_examples_in_the_documentation_hold(name: str) -> None:
    failures, tried = doctest.testfile(str(DOCS / name), module_relative=False)

    assert tried > 3
    assert failures == 0


def test_every_public_name_is_there() -> None:
    for name in nearcast.locality.__all__:
        assert hasattr(nearcast.locality, name), name
