"""The broker's settings, filled from the configuration: a key says which field it fills."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any

from nearcast.broker import BrokerSettings, RetainedSettings, SpaceSettings
from nearcast.config import Configuration, RetainedSection, Section, SpaceSection, settings_of

_OPEN_BEYOND = 1_000
"""So many connections more than `limits.connections` may be open before their CONNECT."""
_LONGEST_KEEP_ALIVE_S = 65_535


def broker_settings(configuration: Configuration) -> BrokerSettings:
    """Return the broker's limits; those that depend on each other are kept consistent."""
    filled = BrokerSettings(
        **dict(_filled(configuration.limits, BrokerSettings)),
        **dict(_filled(configuration.position, BrokerSettings)),
        **dict(_filled(configuration.auth, BrokerSettings)),
    )
    most_s = filled.max_keep_alive_s or _LONGEST_KEEP_ALIVE_S
    return replace(
        filled,
        max_open_connections=filled.max_connections + _OPEN_BEYOND,
        max_connect_bytes=min(filled.max_connect_bytes, filled.max_packet_bytes),
        keep_alive_s=min(filled.keep_alive_s, most_s, _LONGEST_KEEP_ALIVE_S),
        max_keep_alive_s=min(filled.max_keep_alive_s, _LONGEST_KEEP_ALIVE_S),
    )


def space_settings(section: SpaceSection) -> SpaceSettings:
    """Return the broker's settings of a space."""
    return SpaceSettings(
        space=section.to_space(),
        paths=section.paths(),
        **dict(_filled(section, SpaceSettings)),
    )


def retained_settings(section: RetainedSection) -> RetainedSettings:
    """Return the broker's settings for the retained messages of some topics."""
    return RetainedSettings(**dict(_filled(section, RetainedSettings)))


def describe_spaces(configuration: Configuration) -> str:
    """Return a digest of the spaces: only nodes with the same ones can work together."""
    spaces = sorted(
        (one.model_dump(mode="json") for one in configuration.space), key=lambda one: one["name"]
    )
    text = json.dumps(spaces, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _filled(section: Section, settings: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that the keys of a section fill; a key without a value fills none."""
    known = {one.name: one for one in fields(settings)}
    for setting in settings_of(type(section)):
        value = getattr(section, setting.key)
        for name in setting.fills if value is not None else ():
            yield name, _converted(value, known[name])


def _converted(value: Any, target: Field[Any]) -> Any:
    """Return a value in the unit of its field; durations are in seconds so far."""
    if target.name.endswith("_ms"):
        return max(1, round(value * 1000))
    return int(value) if target.type in ("int", int) else value  # a text, or compiled the type
