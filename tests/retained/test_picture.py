"""Pictures are files that can be looked at."""

import sys
from pathlib import Path

import pytest

from nearcast.model.errors import EnvironmentProblem
from nearcast.retained import DecisionProcess, Rates, shipped_policy, solve
from nearcast.retained.picture import draw_general, draw_tables

PNG = b"\x89PNG"


def test_a_general_policy_is_drawn_over_rates(tmp_path: Path) -> None:
    draw_general(shipped_policy(), tmp_path / "general.png")

    assert (tmp_path / "general.png").read_bytes().startswith(PNG)


def test_tables_are_drawn_side_by_side(tmp_path: Path) -> None:
    process = DecisionProcess(Rates(0.1))
    tables = {"best": solve(process).actions, "wait": process.always_wait()}
    draw_tables(tables, tmp_path / "tables.png")

    assert (tmp_path / "tables.png").read_bytes().startswith(PNG)


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(EnvironmentProblem, match="research"):
        draw_general(shipped_policy(), tmp_path / "general.png")
