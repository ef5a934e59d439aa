"""Compiles the broker's core: `python -m nearcast.compiling`.

mypyc makes C of the typed Python of the core, and a C compiler makes extension modules of that and
of the module that is written in C. It takes two minutes of processor time, once for the same
sources. Without a compiler, or without Python's headers, the broker runs as plain Python; this
command says what is missing.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearcast import compiled_core

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import Extension, setup

in_c = [path for path in sys.argv[1:] if path.endswith(".c")]
in_python = [path for path in sys.argv[1:] if path not in in_c]
modules = mypycify(
    ["--ignore-missing-imports", "--follow-imports=silent", *in_python],
    opt_level="2",
    debug_level="0",
    group_name="nearcast_core",
    multi_file=True,  # a file for each module: in one file they take a gigabyte to compile
)
for module in modules:
    module.extra_compile_args.append("-fvisibility=hidden")  # calls within the core are direct
for path in in_c:
    name = path.removesuffix(".c").replace("/", ".")
    modules.append(Extension(name, [path], extra_compile_args=["-O2", "-Wall", "-Wextra"]))
setup(name="nearcast-core", ext_modules=modules, script_args=["-q", "build_ext", "-b", "made"])
"""
_KEPT = 3
"""So many cores stay, the newest: going back to an earlier edit compiles nothing."""


def missing() -> str:
    """Return what compiling needs and is not there; "" if all is there."""
    for package in ("mypyc", "setuptools"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'nearcast[compile]')"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not there (Debian/Ubuntu: apt-get install python3-dev)"
    if not compiler():
        return "there is no C compiler (Debian/Ubuntu: apt-get install gcc; or pip install ziglang)"
    return ""


def compiler() -> str:
    """Return the command of a C compiler: the system's, or the one of the wheel `ziglang`."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    if importlib.util.find_spec("ziglang") is not None:
        return f"{sys.executable} -m ziglang cc"
    return ""


def is_compiled() -> bool:
    """Return whether there is a core for these sources and this Python."""
    return bool(compiled_core.extensions(compiled_core.DIRECTORY / compiled_core.key()))


def compile_core() -> Path:
    """Compile the core for this Python, unless that is done; return its directory."""
    target = compiled_core.DIRECTORY / compiled_core.key()
    if is_compiled():
        return target
    with _alone():
        if not is_compiled():  # another process has waited less
            _compile(target)
    return target


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process compiles into this package."""
    compiled_core.DIRECTORY.mkdir(exist_ok=True)
    with (compiled_core.DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(target: Path) -> None:
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="nearcast-core-") as draft:
        ignored = shutil.ignore_patterns("_kernels", "_compiled", "__pycache__")
        shutil.copytree(compiled_core.PACKAGE, Path(draft, "nearcast"), ignore=ignored)
        files = [str(Path("nearcast", path)) for path in compiled_core.sources()]
        files += [f"nearcast/{path}" for path in compiled_core.IN_C]
        subprocess.run(  # noqa: S603 - our own script
            [sys.executable, "-c", _BUILD, *sorted(files)],
            cwd=draft,
            env={**os.environ, "CC": command, "LDSHARED": f"{command} -shared"},
            check=True,
        )
        _put(Path(draft, "made"), target)
    _sweep(target)


def _put(made: Path, target: Path) -> None:
    """Copy what was made to its place, which other processes see empty or whole."""
    with tempfile.TemporaryDirectory(prefix="draft-", dir=target.parent) as draft:
        if target.exists():  # compiled for another Python
            shutil.copytree(target, Path(draft, "core"))
        shutil.copytree(made, Path(draft, "core"), dirs_exist_ok=True)
        if target.exists():
            target.rename(Path(draft, "old"))
        Path(draft, "core").rename(target)


def _sweep(newest: Path) -> None:
    """Remove all but the newest cores."""
    others = [one for one in compiled_core.cores() if one != newest]
    others.sort(key=lambda one: one.stat().st_mtime, reverse=True)
    for path in others[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Compile the core, or say why the broker runs as plain Python.

    With `--missing` only say what is missing, if something is.
    """
    if is_compiled():
        return 0
    wanted = missing()
    if sys.argv[1:] == ["--missing"]:
        print(wanted, end="\n" if wanted else "")  # noqa: T201 - a command
        return 0
    if not wanted:
        try:
            compile_core()
        except (subprocess.CalledProcessError, OSError) as problem:
            wanted = f"its core could not be compiled ({problem})"
    if wanted:
        print(f"The broker runs as plain Python: {wanted}.")  # noqa: T201 - a command
    return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main())
