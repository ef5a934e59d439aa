"""The notebook of the examples runs from its first cell to its last, on made-up tracks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.java]
NOTEBOOK = Path(__file__).parents[2] / "examples" / "tracks_to_plan.ipynb"


def outputs(path: Path) -> list[dict[str, object]]:
    cells = json.loads(path.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_the_notebook_runs_and_draws_two_maps(tmp_path: Path):
    target = Path(shutil.copy(NOTEBOOK, tmp_path))
    program = Path(sys.executable).with_name("jupyter-execute")
    run = subprocess.run(
        [str(program), "--inplace", "--timeout=300", str(target)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    found = outputs(target)
    assert sum("image/png" in str(one.get("data", "")) for one in found) == 2
    said = "".join("".join(one["text"]) for one in found if one.get("name") == "stdout")  # type: ignore[arg-type]
    assert "leaves for" in said
    assert "deliveries" in said
    assert outputs(NOTEBOOK) == []  # none is committed
