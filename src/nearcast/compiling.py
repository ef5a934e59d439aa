"""Compiles the broker's core: `python -m nearcast.compiling`.

mypyc makes C of the typed Python of the core, and a C compiler makes extension modules of that. It
takes two minutes of processor time. Without a compiler, or without Python's headers, the broker
runs as plain Python; this command says what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from nearcast import compiled_core

_BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify(
    ["--ignore-missing-imports", "--follow-imports=silent", *sys.argv[1:]],
    opt_level="2",
    debug_level="0",
    group_name="nearcast_core",
)
setup(name="nearcast-core", ext_modules=modules, script_args=["-q", "build_ext", "-b", "made"])
"""


def missing() -> str:
    """Return what compiling needs and is not there; "" if all is there."""
    for package in ("mypyc", "setuptools"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'nearcast[compile]')"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers are not there (Debian/Ubuntu: apt-get install python3-dev)"
    if not _compiler():
        return "there is no C compiler (Debian/Ubuntu: apt-get install gcc; or pip install ziglang)"
    return ""


def _compiler() -> str:
    """Return the command of a C compiler: the system's, or the one of the wheel `ziglang`."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    if importlib.util.find_spec("ziglang") is not None:
        return f"{sys.executable} -m ziglang cc"
    return ""


def compile_core() -> Path:
    """Compile the core for this Python; return the directory of its extension modules."""
    target = compiled_core.DIRECTORY / compiled_core.key()
    if compiled_core.extensions(target):
        return target
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix="nearcast-core-") as draft:
        ignored = shutil.ignore_patterns("_kernels", "_compiled", "__pycache__")
        shutil.copytree(compiled_core.PACKAGE, Path(draft, "nearcast"), ignore=ignored)
        modules = [str(Path("nearcast", path)) for path in compiled_core.sources()]
        subprocess.run(  # noqa: S603 - our own script
            [sys.executable, "-c", _BUILD, *modules],
            cwd=draft,
            env={**os.environ, "CC": compiler, "LDSHARED": f"{compiler} -shared"},
            check=True,
        )
        _put(Path(draft, "made"), target)
    _sweep(target)
    return target


def _put(made: Path, target: Path) -> None:
    """Copy what was made to its place, which other processes see empty or whole."""
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="draft-", dir=target.parent) as draft:
        if target.exists():  # compiled for another Python
            shutil.copytree(target, Path(draft, "core"))
        shutil.copytree(made, Path(draft, "core"), dirs_exist_ok=True)
        if target.exists():
            target.rename(Path(draft, "old"))
        Path(draft, "core").rename(target)


def _sweep(newest: Path) -> None:
    """Remove what was compiled from other sources."""
    for path in compiled_core.DIRECTORY.iterdir():
        if path != newest and not path.name.startswith("draft-"):
            shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Compile the core, or say why the broker runs as plain Python."""
    wanted = missing()
    if wanted:
        print(f"The broker runs as plain Python: {wanted}.")  # noqa: T201 - a command
        return 1
    compile_core()
    return 0


if __name__ == "__main__":
    sys.exit(main())
