"""Who may read the files of a broker: their owner alone; a wider file is named at the start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nearcast.config import Configuration

PRIVATE_UMASK = 0o077
"""The file mode creation mask of a broker: what it writes is its own."""
_SECRET = "it holds secrets"  # noqa: S105 - a reason
_PEOPLE = "it tells who was where, and what was said"
_TRUST = "it says who is believed: others may change it"
_BITS = {_SECRET: 0o077, _PEOPLE: 0o077, _TRUST: 0o022}  # those that are too many


def wide_files(configuration: Configuration) -> list[tuple[Path, int, str]]:
    """Return files that others may read or change, each with its mode and why that matters.

    Files that are not there are left out.
    """
    found = []
    for path, why in _files(configuration):
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue
        if mode & _BITS[why]:
            found.append((path, mode, why))
    return found


def todo_for(path: Path, why: str) -> str:
    """Return the command that closes a file."""
    return f"chmod {'go-w' if why == _TRUST else 'go='} {path}"


def _files(configuration: Configuration) -> Iterator[tuple[Path, str]]:
    data = Path(configuration.node.data)
    yield data, _PEOPLE
    yield data / "journal", _PEOPLE
    yield data / "eventlog", _PEOPLE
    if configuration.audit.file is not None:
        yield configuration.audit.file, _PEOPLE
    for secret in _secrets(configuration):
        if secret is not None:
            yield secret, _SECRET
    for trusted in _trusted(configuration):
        if trusted is not None:
            yield trusted, _TRUST


def _secrets(configuration: Configuration) -> Iterator[Path | None]:
    yield configuration.auth.users
    yield configuration.auth.http.token_file
    jwt = configuration.auth.jwt
    if jwt.keys is not None and "://" not in jwt.keys and jwt.algorithms[0].startswith("HS"):
        yield Path(jwt.keys)
    for listener in configuration.listener:
        yield listener.key
    yield configuration.http.operators
    yield configuration.http.key
    yield configuration.network.key
    yield configuration.network.node_key
    yield configuration.network.credentials
    yield configuration.peer.key
    yield configuration.peer.certificate_key


def _trusted(configuration: Configuration) -> Iterator[Path | None]:
    jwt = configuration.auth.jwt
    if jwt.keys is not None and "://" not in jwt.keys and not jwt.algorithms[0].startswith("HS"):
        yield Path(jwt.keys)
    yield configuration.auth.http.authority
    for listener in configuration.listener:
        yield listener.client_ca
        yield listener.crl
    yield configuration.network.node_keys
    yield configuration.network.authority
    yield configuration.peer.authority
