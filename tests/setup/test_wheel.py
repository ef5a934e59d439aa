"""The wheel alone: installed into an empty environment it serves, and `$near` works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import served

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
NEAR, FAR = "-122.4079,37.7875", "-122.3850,37.7880"
MESSAGE = '{"price": 3.5, "kind": "food", "lon": -122.4060, "lat": 37.7880}'
WAIT_S = 240
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name != "PYTHONPATH" and not name.startswith("NEARCAST_")
}


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=CLEAN, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def find_uv() -> str:
    """Return where uv is; set-up puts it into the environment's folder `uv`."""
    places = os.pathsep.join([os.environ["PATH"], str(Path(sys.prefix) / "uv" / "bin")])
    found = shutil.which("uv", path=places)
    if found is None:
        pytest.skip("uv is not installed (make setup)")
    return found


@pytest.fixture
def nearcast(tmp_path: Path) -> Path:
    """Build the wheel, install it and what it depends on, nothing else; return the command."""
    uv, environment = find_uv(), tmp_path / "environment"
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"))
    run(sys.executable, *build, cwd=ROOT)
    (wheel,) = (tmp_path / "dist").glob("nearcast-*.whl")
    run(uv, "venv", "--python", sys.executable, environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    pins = ROOT / "constraints.txt"
    run(uv, "pip", "install", "--python", python, "-c", pins, wheel, cwd=tmp_path)
    return environment / "bin" / "nearcast"


@pytest.fixture
def port(nearcast: Path, tmp_path: Path) -> Iterator[str]:
    work = tmp_path / "work"
    work.mkdir()
    run(nearcast, "init", cwd=work)
    with served("--port", "0", cwd=work, command=[nearcast], env=CLEAN) as ports:
        yield str(ports["tcp"])


def test_the_wheel_serves_a_message_to_who_is_near(nearcast: Path, port: str, tmp_path: Path):
    common = [str(nearcast), "sub", "-p", port, "-t", "shops/#", "-D", "$near=500m", "-C", "1"]
    listeners = [
        subprocess.Popen(
            [*common, "--position", place, "-W", str(WAIT_S)],
            env=CLEAN, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for place in (NEAR, FAR)
    ]  # fmt: skip
    for one in listeners:
        assert one.stderr is not None
        assert one.stderr.readline().startswith("Subscribed to shops/#")
    mark = MESSAGE.replace("-122.4060", FAR.split(",", maxsplit=1)[0])
    for message in (MESSAGE, mark):
        run(nearcast, "pub", "-p", port, "-t", "shops/bakery", "-m", message, cwd=tmp_path)
    near, far = (one.communicate(timeout=WAIT_S)[0].strip() for one in listeners)
    assert near == MESSAGE
    assert far == mark
