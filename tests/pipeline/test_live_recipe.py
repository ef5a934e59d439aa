"""The recipe of docs/live-stream.md, run as it stands there: what is published after
`Listening` is delivered."""

import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nearcast.server.local_cluster import free_port

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.java]

PAGE = (Path(__file__).parents[2] / "docs" / "live-stream.md").read_text(encoding="utf-8")
NEARCAST = [sys.executable, "-c", "from nearcast.cli import main; main()"]
LONGEST_S = 300.0


def recipe(port: int) -> list[list[str]]:
    """Return the page's three commands (serve, stream, pub) for a port."""
    (block,) = [one for one in PAGE.split("```")[1::2] if "nearcast serve" in one]
    lines = [line for line in block.split("\n")[1:] if line and not line.startswith("#")]
    lines = [line.removesuffix(" &") for line in lines]
    words = [shlex.split(line.replace("1883", str(port))) for line in lines]
    assert [one[0] for one in words] == ["nearcast"] * 3
    serve, stream, pub = (one[1:] for one in words)
    return [[*serve, "--port", str(port)], stream, [*pub, "-p", str(port)]]


class Run:
    """A command in the background, and the wait for what it says."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.process = subprocess.Popen(
            [*NEARCAST, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.said.append(line)
                self._news.notify_all()

    def wait_for(self, start: str) -> None:
        with self._news:
            found = self._news.wait_for(
                lambda: any(line.startswith(start) for line in self.said), LONGEST_S
            )
        assert found, "".join(self.said)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_what_is_published_after_the_stream_says_that_it_listens_is_delivered(tmp_path: Path):
    blocks = dict(re.findall(r"```(toml|python)\n(.*?)```", PAGE, re.DOTALL)[::-1])  # the first
    (tmp_path / "nearcast.toml").write_text(blocks["toml"])
    subprocess.run([sys.executable, "-c", blocks["python"]], cwd=tmp_path, check=True)
    serve, stream, pub = recipe(free_port())
    broker = Run(serve, tmp_path)
    broker.wait_for("Ready.")
    listener = Run(stream, tmp_path)
    try:
        listener.wait_for("Listening to mqtt://127.0.0.1:")
        assert listener.said[0] == "Starting Spark (local[*]) ...\n"
        subprocess.run([*NEARCAST, *pub], cwd=tmp_path, check=True)
        until_s = time.monotonic() + LONGEST_S
        while not list((tmp_path / "found" / "deliveries").glob("*/_SUCCESS")):
            if listener.process.poll() == 5 and "too busy" in "".join(listener.said):
                listener.end()
                listener = Run(stream, tmp_path)  # as it says: it goes on where it was
            assert listener.process.poll() is None, "".join(listener.said)
            assert time.monotonic() < until_s, "".join(listener.said)
            time.sleep(0.1)
    finally:
        listener.end()
        broker.end()
    files = (tmp_path / "found" / "deliveries").glob("*/*.parquet")
    found = [one for file in files for one in pq.read_table(file)["subscription_id"].to_pylist()]
    assert sorted(found) == [1, 2]
