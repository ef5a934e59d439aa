"""Compile kernels before they are needed: `python -m nearcast.warming`, in parallel, with progress.

Worker processes share a directory of `kernel_files.py`. Each takes a module whose kernels no other
process, of this program or of another one, is compiling: they have parts in common, which a process
translates once. A worker that finds no such module helps with single kernels. In the end all
requested kernels are there. A worker has low priority, and ends with the process that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from nearcast import kernel_files, kernels

_WHOLE = {"plans": "nearcast.locality.layout.kernels"}
"""Parts without entry points: one function each, which calls everything once."""
PARTS = (*kernels.PARTS, *_WHOLE)
_SLOWEST = ("ordering.kernels", "index.boxes.change", "intervals.skip_list", "index.boxes.top")
"""The modules that take longest come first, so that no processor is idle at the end."""
_PROGRESS_S = 3.0


class Task(NamedTuple):
    """One unit of compilation, for one process."""

    name: str
    run: Callable[[], object]

    @property
    def module(self) -> str:
        """Return the module of its kernel."""
        return self.name.rpartition(".")[0] or self.name


def tasks(parts: Sequence[str]) -> list[Task]:
    """Return the compile tasks of some parts, the slowest modules first."""
    found: list[Task] = []
    for part in parts:
        if part in _WHOLE:
            found.append(Task(part, import_module(_WHOLE[part]).warm_up))
        else:
            found += [
                Task(one.name, partial(kernels.compile_entry, one.function))
                for one in kernels.entries(part)
            ]
    return sorted(found, key=lambda task: _place(task.module))


def _place(module: str) -> int:
    return next((i for i, end in enumerate(_SLOWEST) if module.endswith(end)), len(_SLOWEST))


def work(directory: Path, parts: Sequence[str]) -> None:
    """Compile the missing kernels of these parts, sharing the work with other processes."""
    kernel_files.use(directory)
    todo = tasks(parts)
    for module in dict.fromkeys(task.module for task in todo):
        lock = kernel_files.Lock(f"{module}.module")
        if lock.acquire(wait=False):
            for task in todo:
                if task.module == module:
                    _do(task, directory, waits=False)
            lock.release()
    for waits in (False, True):  # at last those that others had, as they may have been killed
        for task in reversed(todo):
            _do(task, directory, waits=waits)
    for part in parts:
        (directory / f"{part}.done").touch()


def _do(task: Task, directory: Path, *, waits: bool) -> None:
    done, lock = directory / f"{task.name}.done", kernel_files.Lock(f"{task.name}.task")
    if done.exists() or not lock.acquire(wait=waits):
        return
    try:
        if not done.exists():
            task.run()
            done.touch()
    finally:
        lock.release()


# -- workers -----------------------------------------------------------------------------------


def processors() -> int:
    """Return how many workers are useful on this machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_command(directory: Path, parts: Sequence[str]) -> list[str]:
    """Return the command line of a worker; it ends when its standard input closes."""
    return [sys.executable, "-P", "-m", "nearcast.warming", "--worker", str(directory), *parts]


def _be_a_worker(directory: Path, parts: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.nice(10)
    os.umask(0o022)  # kernels are for all users; the files of a broker that asks for them are not
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(directory, parts)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the parent is gone
    os._exit(1)


def warm_up(parts: Sequence[str], say: Callable[[str], object]) -> int:
    """Compile these parts in parallel, with progress lines; return the exit code, 0 or 1."""
    directory = kernel_files.choose(list(parts))
    if kernel_files.is_warm(directory.parent, list(parts)):
        say(f"All kernels are compiled, in {directory}")
        return 0
    names = [task.name for task in tasks(parts)]
    began = time.monotonic()
    say(f"Compiling {len(names)} kernels on {processors()} processors, into {directory} ...")
    workers = [
        subprocess.Popen(worker_command(directory, parts), stdin=subprocess.PIPE)  # noqa: S603
        for _ in range(processors())
    ]
    while any(worker.poll() is None for worker in workers):
        try:
            workers[0].wait(_PROGRESS_S)
            workers[-1].wait(_PROGRESS_S)
        except subprocess.TimeoutExpired:
            done = sum((directory / f"{name}.done").exists() for name in names)
            say(f"  {done} of {len(names)} after {time.monotonic() - began:.0f} s")
    for worker in workers:
        worker.communicate()
    took_s = time.monotonic() - began
    if any(worker.returncode for worker in workers):
        say(f"Some kernels were not compiled, in {took_s:.0f} s: they will be when they are called")
        return 1
    say(f"Compiled {len(names)} kernels in {took_s:.0f} s")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the command line: `[part ...]`, or `--worker directory part ...`."""
    if arguments[:1] == ["--worker"]:
        _be_a_worker(Path(arguments[1]), arguments[2:])
        return 0
    unknown = set(arguments) - set(PARTS)
    if unknown:
        _say(f"unknown: {', '.join(unknown)}; known parts: {', '.join(PARTS)}")
        return 2
    return warm_up(arguments or PARTS, _say)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
