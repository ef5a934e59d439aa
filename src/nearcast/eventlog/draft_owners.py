"""Who writes a draft of a table: a small file beside it, `.draft-VERSION`.

    {"host": "alpha", "boot": "1f3c…", "pid": 4711, "started": 8123456}

A draft is abandoned if its writer ran on this machine and has ended. Of a writer on another machine
nothing can be known: its draft is abandoned once its mark is older than `LONGEST_WRITE_S`.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from pyarrow import fs

DRAFT = ".draft-"
LONGEST_WRITE_S = 7 * 86_400


def mark_draft(store: fs.FileSystem, path: str) -> None:
    """Write the mark of this process."""
    with store.open_output_stream(path) as stream:
        stream.write(json.dumps(_this_process()).encode())


def is_abandoned(store: fs.FileSystem, mark: fs.FileInfo, now: datetime | None) -> bool:
    """Return whether nobody will finish the draft of a mark; without `now`, none is too old."""
    try:
        with store.open_input_stream(mark.path) as stream:
            owner = json.loads(stream.read())
        host, pid, started = owner["host"], int(owner["pid"]), owner["started"]
    except FileNotFoundError:
        return False  # published or discarded a moment ago
    except (OSError, ValueError, KeyError, TypeError):
        return _is_old(mark, now)
    mine = _this_process()
    if host != mine["host"]:
        return _is_old(mark, now)
    return bool(owner.get("boot") != mine["boot"] or _started(pid) != started)


def _is_old(mark: fs.FileInfo, now: datetime | None) -> bool:
    if mark.mtime is None or now is None:
        return False
    return bool((now - mark.mtime).total_seconds() > LONGEST_WRITE_S)


def _this_process() -> dict[str, object]:
    pid = os.getpid()
    return {"host": os.uname().nodename, "boot": _boot(), "pid": pid, "started": _started(pid)}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Return when a process began, in ticks since the boot; None if it has ended.

    A number of a process is used again after some time; the pair of both is not.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _is_there(pid)
    state, *rest = text.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(rest[18])


def _is_there(pid: int) -> int | None:
    """Return 0 for a process that runs, where the machine has no /proc."""
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0
