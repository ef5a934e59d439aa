"""`calls.c`, the module of socket calls that is written in C, compiled for a test or a fuzzer."""

from __future__ import annotations

import subprocess
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from nearcast import compiled_core, compiling

_NAME = "nearcast.server.sockets.calls"
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)


def compiled_calls(folder: Path, *flags: str) -> Path:
    """Compile `calls.c` with all warnings as errors; return the extension module."""
    made = folder / f"calls{EXTENSION_SUFFIXES[0]}"
    source = compiled_core.PACKAGE / "server" / "sockets" / "calls.c"
    include = sysconfig.get_path("include")
    warnings = ("-Wall", "-Wextra", "-Werror")
    command = [*compiling.compiler().split(), "-shared", "-fPIC", "-g", "-O1", *warnings, *flags]
    subprocess.run([*command, f"-I{include}", str(source), "-o", str(made)], check=True)
    return made


def load_calls(made: Path) -> Any:
    """Return the module of a file that `compiled_calls` has made."""
    spec = spec_from_file_location(_NAME, made, loader=ExtensionFileLoader(_NAME, str(made)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module
