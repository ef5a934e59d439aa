"""User properties as plain pairs, and as paho's `Properties`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nearcast.model.errors import EnvironmentProblem, UnknownNameError
from nearcast.model.wording import did_you_mean, shown

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties

Pairs = tuple[tuple[str, str], ...]


def paho_properties(
    packet: str, pairs: Iterable[tuple[str, str]], base: Properties | None = None
) -> Properties:
    """Return paho's properties of a packet (`SUBSCRIBE`, `PUBLISH`, …) with these pairs.

    With `base`, the pairs are appended to its user properties; `base` itself is changed and
    returned, as paho's properties cannot be copied.
    """
    try:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties
    except ImportError:
        raise EnvironmentProblem(
            "paho-mqtt is not installed",
            todo="pip install paho-mqtt, or use `.pairs` with another client",
        ) from None

    properties = base
    if properties is None:
        properties = Properties(getattr(PacketTypes, packet))  # type: ignore[no-untyped-call]
    found = list(pairs)
    if found:
        properties.UserProperty = found  # paho appends to existing user properties
    return properties


def one_of(value: str, where: str, known: tuple[str, ...]) -> None:
    """Raise UnknownNameError unless the value is known."""
    if value not in known:
        raise UnknownNameError(
            shown(value),
            where=where,
            expected=f"one of {', '.join(known)}" if len(known) > 1 else known[0],
            todo=did_you_mean(str(value), known),
        )
