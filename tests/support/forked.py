"""Processes of this Python that need not import first: they are forked off one that has.

To import `nearcast.server` takes a second of processor time, and tests start hundreds of brokers,
nodes and commands. `Forked` is a `subprocess.Popen` for `python -c CODE ARGUMENTS`. One process per
pytest process (`nursery.py`) imports everything once and forks a child for each call. The child has
the files, the directory, the environment and the arguments that a new process would have, and ends
as a new process does. Tests of the start itself use `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

_NURSERY = Path(__file__).with_name("nursery.py")
_AT_IMPORT = ("PYTHON", "NUMBA", "XDG", "LD_")
"""Variables that act while modules are imported: with other values of these nothing is forked."""
_NUMBER = struct.Struct("<i")
_MOST_BYTES = 1 << 18


class Forked(subprocess.Popen[Any]):
    """A process that runs `python -c CODE ARGUMENTS`; any other command runs as with `Popen`."""

    _report: int | None = None
    """The descriptor from which the keeper's report is read: how the child ended."""

    def _execute_child(self, args: Any, executable: Any, *rest: Any) -> None:
        cwd, env = rest[3:5]
        if list(args[:2]) != [sys.executable, "-c"] or not _has_same_imports(env):
            super()._execute_child(args, executable, *rest)  # type: ignore[misc]
            return
        p2cread, _, _, c2pwrite, _, errwrite = rest[8:14]
        call = json.dumps(
            {
                "code": args[2],
                "argv": ["-c", *map(str, args[3:])],
                "cwd": str(cwd or Path.cwd()),
                "environ": dict(os.environ if env is None else env),
            }
        ).encode()
        assert len(call) < _MOST_BYTES
        self._report, keepers_end = os.pipe()
        standard = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite]
        standard.append(2 if errwrite == -1 else errwrite)
        socket.send_fds(_nursery(), [call], [*standard, keepers_end])
        os.close(keepers_end)
        self.pid = self._read()
        self._child_created = True
        self._close_pipe_fds(*rest[8:14])  # type: ignore[attr-defined]

    def _read(self) -> int:
        assert self._report is not None
        data = os.read(self._report, _NUMBER.size)
        return int(_NUMBER.unpack(data)[0]) if data else int(signal.SIGKILL)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._report is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._report], [], [], 0)[0]:
            return 0, 0
        return self.pid, self._read()

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        if self._report is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc,no-any-return]
        return None if self.returncode is None and not self._has_ended() else self.returncode

    def _has_ended(self) -> bool:
        pid, status = self._try_wait(os.WNOHANG)
        if pid:
            self._handle_exitstatus(status)
        return bool(pid)

    def _handle_exitstatus(self, sts: int, *rest: Any) -> None:
        super()._handle_exitstatus(sts, *rest)  # type: ignore[misc]
        if self._report is not None:
            os.close(self._report)


@cache
def _nursery() -> socket.socket:
    """Start the process that imports and forks; return the way to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
    number = theirs.fileno()
    command = [sys.executable, str(_NURSERY), str(number), str(_MOST_BYTES)]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # with threads it could not fork
    process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, env=environ)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait(60)

    atexit.register(end)
    return ours


@cache
def _ours_at_import() -> dict[str, str]:
    return _at_import(os.environ)


def _at_import(environ: Any) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_AT_IMPORT)}


def _has_same_imports(environ: Any) -> bool:
    return _at_import(os.environ if environ is None else environ) == _ours_at_import()
