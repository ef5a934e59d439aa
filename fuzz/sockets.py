"""Random histories of the socket calls in C, under sanitizers, beside those in Python.

    python fuzz/sockets.py --seconds 600 --seed 1

Compiles `calls.c` with AddressSanitizer and UndefinedBehaviorSanitizer (gcc or clang), and runs
histories of sockets that come, go, fill up and break on both ways. A finding is a report of a
sanitizer, which ends the process, a difference between the two, or memory that grows.
"""

from __future__ import annotations

import argparse
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

from nearcast import compiled_core, compiling

# Some packages install a package `tests` of their own: ours is named here.
ours = types.ModuleType("tests")
ours.__path__ = [str(Path(__file__).parents[1] / "tests")]
sys.modules["tests"] = ours
from tests.support.c_calls import SANITIZERS, compiled_calls, load_calls  # noqa: E402
from tests.support.socket_histories import SocketHistory  # noqa: E402

STEPS = 400


def sanitized(arguments: list[str]) -> int:
    """Run this file again with the sanitizers' library in front of everything."""
    with tempfile.TemporaryDirectory() as folder:
        made = compiled_calls(Path(folder), *SANITIZERS)
        command = [*compiling.compiler().split(), "-print-file-name=libasan.so"]
        library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        environment = {
            **os.environ,
            "LD_PRELOAD": library,
            "PYTHONMALLOC": "malloc",  # every object has a place of its own
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",  # Python keeps much until its end
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        }
        command = [sys.executable, __file__, *arguments, "--made", str(made)]
        return subprocess.run(command, env=environment, check=False).returncode


def compare(made: Path, seconds: float, seed: int) -> int:
    """Run histories on both ways until the time is over; return how many differ."""
    path = compiled_core.PACKAGE / "server" / "sockets" / "calls.py"
    in_python, in_c = types.SimpleNamespace(**runpy.run_path(str(path))), load_calls(made)
    until_s = time.monotonic() + seconds
    different, first, early_kb = 0, seed, 0
    while time.monotonic() < until_s:
        one, other = (SocketHistory(calls, seed).run(STEPS) for calls in (in_python, in_c))
        if one != other:
            different += 1
            pairs = zip(one, other, strict=False)
            print(f"seed {seed}: {next(pair for pair in pairs if pair[0] != pair[1])}")
        seed += 1
        if seed == first + 50:
            early_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    late_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{seed - first} histories of {STEPS} steps, {different} differ; memory {late_kb} kB",
        end="",
    )
    print(f", {early_kb} kB after 50" if early_kb else "")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--made", type=Path, help="the module, if it is compiled already")
    given = parser.parse_args()
    if given.made is None:
        return sanitized(sys.argv[1:])
    return 1 if compare(given.made, given.seconds, given.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
