"""Temporary files of Spark sessions on this machine: one folder each, swept by the next session.

Spark removes its files when it ends, not when it is killed. A session of ours keeps them in a
folder that is named after its process; the next session removes the folders of processes that are
gone.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def session_folder() -> Path:
    """Make the folder of this process and sweep those of dead ones; it is removed at exit."""
    base = Path(tempfile.gettempdir()) / f"nearcast-spark-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    sweep(base)
    folder = base / str(os.getpid())
    folder.mkdir(exist_ok=True)
    atexit.register(_remove, folder)
    return folder


def sweep(base: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in base.iterdir():
        if folder.name.isdecimal() and not _is_alive(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user, and alive
    return True


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # other sessions are there
        folder.parent.rmdir()
