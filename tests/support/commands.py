"""The `nearcast` command as tests run it: our source, without settings of the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forked import Forked

_CODE = "import sys; sys.argv[0] = 'nearcast'; from nearcast.cli import main; main()"
NEARCAST = [sys.executable, "-c", _CODE]
ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("NEARCAST_")}
ENVIRON["NEARCAST_HTTP__ADDRESS"] = "off"  # brokers of several tests run at once
_LIMIT_S = 240


def start_nearcast(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a command with pipes for what it prints; `options` are those of `Popen`."""
    options.setdefault("env", ENVIRON)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return Forked([*NEARCAST, *arguments], text=True, **pipes | options)


def nearcast(
    *arguments: str, text: str = "", cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `text` as its input."""
    with start_nearcast(
        *arguments, stdin=subprocess.PIPE, cwd=cwd, env=ENVIRON | environ
    ) as process:
        try:
            said, errors = process.communicate(text, timeout=_LIMIT_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


@contextmanager
def served(
    *options: str,
    cwd: Path,
    command: Sequence[str | Path] = NEARCAST,
    env: Mapping[str, str] = ENVIRON,
) -> Iterator[dict[str, int]]:
    """Run `nearcast serve` until the block ends, then in order; give its ports by kind."""
    broker = Forked(
        [*command, "serve", *options], stdout=subprocess.PIPE, text=True, env=env, cwd=cwd
    )
    assert broker.stdout is not None
    try:
        said = ""
        while "Ready. Stop with Ctrl-C." not in said:
            line = broker.stdout.readline()
            assert line, said
            said += line
        found = re.findall(r"Listening on (\w+) 127\.0\.0\.1:(\d+)", said)
        yield {kind: int(port) for kind, port in found}
    finally:
        broker.terminate()
        broker.stdout.close()
        assert broker.wait(timeout=_LIMIT_S) == 0
