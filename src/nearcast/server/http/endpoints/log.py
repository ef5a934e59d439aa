"""The log, and whether the configuration file would be accepted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from nearcast.config import Configuration, read
from nearcast.model.errors import ConfigurationError
from nearcast.server.config_reload import changed_keys, is_at_once
from nearcast.server.http.endpoint import Call, Role, endpoint
from nearcast.server.http.gathering import log_of_all
from nearcast.server.http.log_tail import KEPT_LINES, LogLine

_SECRETS = frozenset({"password", "token", "credentials"})


class LogQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many of the last lines, and only those behind a number."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=KEPT_LINES)] = 200
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class LogLines(msgspec.Struct, frozen=True):
    """Lines of the log, the oldest first; `next` is the number to go on behind."""

    items: list[LogLine]
    next: int


class ConfigurationView(msgspec.Struct, frozen=True):
    """The settings in force, without passwords and tokens."""

    settings: dict[str, Any]


class ConfigurationText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration file as text."""

    text: Annotated[str, msgspec.Meta(max_length=1 << 20)]


class ConfigurationProblem(msgspec.Struct, frozen=True):
    """One problem, with the line where it is known."""

    line: int | None
    where: str
    detail: str


class ConfigurationCheck(msgspec.Struct, frozen=True):
    """What is wrong, or which keys differ from those in force, and what applies them."""

    ok: bool
    problems: list[ConfigurationProblem]
    by_reload: list[str]
    by_restart: list[str]


@endpoint("GET", "/api/log", role=Role.OPERATOR, query=LogQuery, gather=log_of_all)
def log_lines(call: Call) -> LogLines:
    """Return the last lines of the log."""
    tail, query = call.site.sources.tail, call.query
    lines = [one for one in tail.last(query.limit) if one.number > query.after]
    return LogLines(lines, tail.count)


@endpoint("GET", "/api/configuration", role=Role.OPERATOR)
def configuration(call: Call) -> ConfigurationView:
    """Return the settings in force."""
    dumped = call.site.sources.configuration().model_dump(mode="json")
    return ConfigurationView(_without_secrets(dumped))


@endpoint(
    "POST",
    "/api/configuration/check",
    role=Role.OPERATOR,
    body=ConfigurationText,
    changes=False,
)
def check_configuration(call: Call) -> ConfigurationCheck:
    """Return what is wrong with the text of a configuration file, and what it would change."""
    reading = read(call.body.text, {}, file="text")
    if reading.configuration is None:
        problems = [_problem(one) for one in reading.problems]
        return ConfigurationCheck(False, problems, [], [])
    old, new = call.site.sources.configuration(), reading.configuration
    return ConfigurationCheck(True, [], *_sorted(old, new))


def _sorted(old: Configuration, new: Configuration) -> tuple[list[str], list[str]]:
    changed = changed_keys(old, new)
    now = [key for key in changed if is_at_once(key, old, new)]
    return now, [key for key in changed if key not in now]


def _problem(one: ConfigurationError) -> ConfigurationProblem:
    return ConfigurationProblem(one.line, one.where, str(one))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: "…" if key in _SECRETS and one is not None else _without_secrets(one)
            for key, one in value.items()
        }
    return [_without_secrets(one) for one in value] if isinstance(value, list) else value
