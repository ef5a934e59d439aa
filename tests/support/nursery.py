"""The process that imports everything once and forks a child for each call of `forked.py`.

Each child has a keeper between itself and this process, which waits for it and reports how it
ended. When pytest dies, this process ends, then the keepers, then the children.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import struct
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORTED = (
    "nearcast.cli",
    "nearcast.client",
    "nearcast.server",
    "nearcast.server.cluster.runtime",
    "typer.rich_utils",
)
_NUMBER = struct.Struct("<i")
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def run_nursery(number: int, most_bytes: int) -> str:
    """Fork a child for each call, until the other end closes; return, in a child, its code."""
    for name in _IMPORTED:
        import_module(name)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "only a process with one thread can be forked"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls = socket.socket(fileno=number)
    while True:
        data, files, _, _ = socket.recv_fds(calls, most_bytes, 4)
        if not data:
            sys.exit()
        if os.fork() == 0:
            calls.close()
            return _keep(json.loads(data), files)
        for one in files:
            os.close(one)
        _bury()


def _bury() -> None:
    """Forget the keepers that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _keep(call: dict[str, Any], files: list[int]) -> str:
    """Fork the child, in which this returns its code; report its number, and how it ends."""
    _die_with_parent()
    report = files.pop()
    child = os.fork()
    if child == 0:
        os.close(report)
        return _become(call, files)
    for one in files:
        os.close(one)
    os.write(report, _NUMBER.pack(child))
    os.write(report, _NUMBER.pack(os.waitpid(child, 0)[1]))
    os._exit(0)


def _become(call: dict[str, Any], files: list[int]) -> str:
    """Make this process like a new one with these files, arguments and variables."""
    _die_with_parent()
    os.setpgid(0, 0)
    for standard, number in enumerate(files):
        os.dup2(number, standard)
        if number > 2:
            os.close(number)
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["environ"])
    sys.argv[:] = call["argv"]
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return str(call["code"])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)


if __name__ == "__main__":
    sys.path[0] = ""  # as with `python -c`
    exec(run_nursery(int(sys.argv[1]), int(sys.argv[2])), {"__name__": "__main__"})
