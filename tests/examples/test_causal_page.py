"""The page on causal order: its configuration is valid, and its program prints what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.doc_pages import blocks
from tests.support.real_cluster import RealCluster, forked_nodes

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "causal-order.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says_on_three_nodes(tmp_path: Path):
    (config,) = blocks("toml", PAGE)
    (program,) = blocks("python", PAGE)
    promised = PAGE.split(program)[1].split("```")[2].strip()
    patient = config.replace("250ms", "20s")  # the machine that runs the tests may be busy
    with forked_nodes(), RealCluster(tmp_path, patient) as cluster:
        cluster.start("a", "b", "c")
        cluster.join("a", "b", "c")
        ports = [str(cluster.ports[name]) for name in "abc"]
        run = subprocess.run(
            [sys.executable, "-c", program, *ports],
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert run.stdout.strip() == promised, run.stderr
