"""Fuzz the compiled core under AddressSanitizer and UndefinedBehaviorSanitizer.

    python scripts/sanitize.py --seconds 3600

Compiles a copy of the package with both (gcc or clang), in `.venv/sanitized`: the C that mypyc
makes of the broker's core, and `calls.c`. The fuzzers then run on it in turn, a share of the time
each. A report of a sanitizer ends the process that it is about, and is shown here. All objects get
their memory from the C library, so that a use after the end of an object is noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from nearcast import compiled_core, compiling

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "sanitized"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
SLOWER = "20"  # the fuzzers judge how quick the broker is
CHECK = """
import nearcast.broker.broker, nearcast.server.sockets.calls as calls
from nearcast import compiled_core
print(compiled_core.described(), compiled_core.PACKAGE, calls.IS_IN_C)
"""


def compile_sanitized() -> None:
    """Copy the package and compile its core there, unless that was done for these sources."""
    ignored = shutil.ignore_patterns("_compiled", "_kernels", "__pycache__")
    package = FOLDER / "nearcast"
    shutil.copytree(compiled_core.PACKAGE, package, ignore=ignored, dirs_exist_ok=True)
    recipe = package / "compiling.py"  # optimising takes ten minutes here, and hides mistakes
    recipe.write_text(recipe.read_text().replace('opt_level="2"', 'opt_level="0"'))
    command = f"{compiling.compiler()} {FLAGS}"
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "CC": command}
    subprocess.run([sys.executable, "-m", "nearcast.compiling"], env=environment, check=True)


def environment(reports: Path) -> dict[str, str]:
    """Return the environment in which Python runs the sanitized core."""
    libraries = [_library(name) for name in ("libasan.so", "libstdc++.so")]
    return {
        **os.environ,
        "PYTHONPATH": str(FOLDER),
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONMALLOC": "malloc",  # every object has a place of its own
        "NUMBA_CACHE_DIR": str(compiled_core.PACKAGE / "_kernels"),  # not compiled once more
        "NEARCAST_PLAIN": "",
        "NEARCAST_FUZZ_SLOWER": SLOWER,
        # Python keeps much until its end, so what is not freed then is no finding.
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports / 'address'}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports / 'undefined'}",
    }


def _library(name: str) -> str:
    command = [*compiling.compiler().split(), f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return str(Path(found).resolve())


def fuzzers(seconds: int) -> list[list[str]]:
    """Return the command lines of the fuzzers, all together for so many seconds or so."""
    share, hours = str(seconds * 3 // 10), str(max(1, seconds // 150))
    return [
        ["fuzz/sockets.py", "--seconds", str(seconds // 10)],
        ["fuzz/mqtt.py", "--live", "--seconds", share],
        ["fuzz/valid.py", "--seconds", share],
        ["fuzz/churn.py", "--hours", hours, "--devices", "200"],
    ]


def main() -> int:
    """Run all; return how many fuzzers failed, and the reports with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", default="", help="fuzzers whose file has this in its name")
    given = parser.parse_args()
    compile_sanitized()
    reports = FOLDER / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    variables = environment(reports)
    print(_told([sys.executable, "-c", CHECK], variables), flush=True)
    bad = 0
    for command in fuzzers(given.seconds):
        if given.only in command[0]:
            began_s = time.monotonic()
            # This one compiles its own module, and takes the sanitizers only for that.
            its = os.environ if "sockets" in command[0] else variables
            code = subprocess.run([sys.executable, *command], cwd=ROOT, env=its).returncode  # noqa: PLW1510
            print(f"{command[0]}: {time.monotonic() - began_s:.0f} s, exit {code}", flush=True)
            bad += code != 0
    found = sorted(reports.iterdir())
    for path in found:
        print(f"--- {path.name}\n{path.read_text()[:8_000]}")
    return 1 if bad or found else 0


def _told(command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("compiled"), done.stdout + done.stderr
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
