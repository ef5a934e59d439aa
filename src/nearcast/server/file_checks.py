"""Checks that the files named in a configuration can be used, before a server needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from nearcast.config import Configuration
from nearcast.model.errors import ConfigurationError, EnvironmentProblem, NearcastError
from nearcast.nats.connection import tls_context as nats_context
from nearcast.server.auth.rules import make_access
from nearcast.server.cluster.cluster_keys import keys_of as cluster_keys
from nearcast.server.http.operators import read_operators
from nearcast.server.listeners.tls import tls_context


def file_problems(configuration: Configuration) -> list[ConfigurationError]:
    """Return the problems with users, certificates, keys and other files of a configuration.

    The checks are the code that a server starts with. Paths are relative to the working directory
    of this process, as for `nearcast serve`.
    """
    problems = []
    for key, look in _looks(configuration):
        try:
            look()
        except NearcastError as problem:
            problems.append(
                ConfigurationError(
                    problem.found,
                    where=f"{key}: {problem.where}" if problem.where else key,
                    expected=problem.expected,
                    todo=problem.todo,
                )
            )
    return problems


def _looks(configuration: Configuration) -> Iterator[tuple[str, Callable[[], object]]]:
    yield from _looks_at_access(configuration)
    if configuration.peer.histograms is not None:
        yield "peer.histograms", partial(_check_there, configuration.peer.histograms)
    network = configuration.network
    if network.is_encrypted:
        yield "network", partial(nats_context, network)
    if network.node_key is not None:
        yield "network.node_key", partial(cluster_keys, network)
    for name in ("credentials", "histograms"):
        path = getattr(network, name)
        if path is not None:
            yield f"network.{name}", partial(_check_there, path)


def _looks_at_access(configuration: Configuration) -> Iterator[tuple[str, Callable[[], object]]]:
    auth = configuration.auth
    if auth.jwt.keys or auth.http.url or auth.plugin:
        yield "auth", partial(make_access, configuration)
    elif auth.users is not None:
        yield "auth.users", partial(make_access, configuration)
    for number, section in enumerate(configuration.listener):
        files = {
            name: getattr(section, name) for name in ("certificate", "key", "client_ca", "crl")
        }
        for name, path in files.items():
            if path is not None:
                yield f"listener[{number}].{name}", partial(_check_there, path)
        if all(path is None or path.exists() for path in files.values()) and section.certificate:
            yield f"listener[{number}]", partial(tls_context, section)
    http = configuration.http
    if http.operators is not None:
        yield "http.operators", partial(read_operators, http.operators)
    for name in ("certificate", "key"):
        path = getattr(http, name)
        if path is not None:
            yield f"http.{name}", partial(_check_there, path)


def _check_there(path: Path) -> None:
    if not path.exists():
        raise EnvironmentProblem("No such file or directory", where=str(path))
