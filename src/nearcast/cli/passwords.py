"""Where commands get a password from: an option, a file, the environment, a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nearcast.cli.terminal import os_errors_translated
from nearcast.model.errors import MisuseError

VARIABLE = "NEARCAST_PASSWORD"


def find_password(user: str | None, given: str | None, file: Path | None) -> bytes | None:
    """Return the password to log in with; None if none is needed.

    For a user, it is the option, else the file, else the variable NEARCAST_PASSWORD, else what
    somebody types on a terminal. A file needs no user: it may be a token.
    """
    if given is not None:
        if file is not None:
            raise MisuseError("--password and --password-file", expected="one of them")
        return given.encode()
    if file is not None:
        return read_password(file)
    if user is None:
        return None
    found = os.environ.get(VARIABLE)
    if found is not None:
        return found.encode()
    return _asked(user).encode() if sys.stdin.isatty() else None


def read_password(file: Path) -> bytes:
    """Return the first line of a file, without its end."""
    with os_errors_translated():
        lines = file.read_bytes().splitlines()
    if not lines or not lines[0]:
        raise MisuseError("an empty first line", where=str(file), expected="the password")
    return lines[0]


def _asked(user: str) -> str:
    from getpass import getpass

    return getpass(f"Password of {user}: ")
