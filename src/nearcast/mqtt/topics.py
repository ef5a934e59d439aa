"""Topic names and topic filters (section 4.7), shared subscriptions (4.8.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nearcast.model.wording import shown
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.reasons import ReasonCode


@dataclass(frozen=True, slots=True)
class SharedFilter:
    """`$share/group/filter` split; the group is empty if the filter is not shared."""

    group: str
    topic_filter: str


# Control characters and non-characters, which a receiver may refuse (section 1.5.4).
_UNPRINTABLE = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def check_topic_name(name: str, *, max_levels: int = 0, printable: bool = False) -> None:
    """Refuse a topic name that is empty, has wildcards [MQTT-3.3.2-2], or is too deep.

    With `printable`, control characters are refused as well.

    >>> check_topic_name("shops/5th/bakery")
    """
    if not name or "+" in name or "#" in name:
        raise MqttProtocolError(
            shown(name),
            reason=ReasonCode.TOPIC_NAME_INVALID,
            where="topic name",
            expected="at least one character, no + and no #",
        )
    _check_depth(name, max_levels, ReasonCode.TOPIC_NAME_INVALID)
    if printable:
        _check_printable(name, ReasonCode.TOPIC_NAME_INVALID)


def check_topic_filter(text: str, *, max_levels: int = 0, printable: bool = False) -> None:
    """Refuse a filter that violates section 4.7.1; with `printable`, also control characters.

    >>> check_topic_filter("shops/+/bakery/#")
    """
    if not text:
        raise _bad_filter(text, "at least one character")
    levels = text.split("/") if has_wildcard(text) else ()
    for place, level in enumerate(levels):
        if "#" in level and (level != "#" or place != len(levels) - 1):  # [MQTT-4.7.1-1]
            raise _bad_filter(text, "# alone, and as the last level")
        if "+" in level and level != "+":  # [MQTT-4.7.1-2]
            raise _bad_filter(text, "+ as a level of its own")
    _check_depth(text, max_levels, ReasonCode.TOPIC_FILTER_INVALID)
    if printable:
        _check_printable(text, ReasonCode.TOPIC_FILTER_INVALID)


def split_shared(text: str) -> SharedFilter:
    """Split a share group from a filter; checks the group's name, not the filter.

    See [MQTT-4.8.2-1] and [MQTT-4.8.2-2].

    >>> split_shared("$share/g/a/+")
    SharedFilter(group='g', topic_filter='a/+')
    """
    if text != "$share" and not text.startswith("$share/"):
        return SharedFilter("", text)
    parts = text.split("/", 2)
    if len(parts) != 3 or not parts[1] or not parts[2] or "+" in parts[1] or "#" in parts[1]:
        raise _bad_filter(text, "$share/<group without wildcards>/<filter>")
    return SharedFilter(parts[1], parts[2])


def has_wildcard(topic_filter: str) -> bool:
    """Return whether a checked filter can match more than one topic."""
    return "+" in topic_filter or "#" in topic_filter


def _bad_filter(text: str, expected: str) -> MqttProtocolError:
    return MqttProtocolError(
        shown(text),
        reason=ReasonCode.TOPIC_FILTER_INVALID,
        where="topic filter",
        expected=expected,
    )


def _check_depth(text: str, max_levels: int, reason: ReasonCode) -> None:
    if max_levels and text.count("/") >= max_levels:
        raise MqttProtocolError(
            f"{text.count('/') + 1} levels",
            reason=reason,
            where="topic",
            expected=f"at most {max_levels}",
        )


def _check_printable(text: str, reason: ReasonCode) -> None:
    found = _UNPRINTABLE.search(text)
    if found is not None:
        raise MqttProtocolError(
            f"U+{ord(found[0]):04X} at character {found.start()}",
            reason=reason,
            where="topic",
            expected="no control characters",
        )
