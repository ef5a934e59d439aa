"""Configuration reload: which keys take effect at once, and which need a restart.

Limits announced to clients at CONNECT (packet size, window), open resources (listeners, files) and
settings that the broker was built with need a restart; the log names those keys. A key takes effect
at once if it is declared with `reload` (`nearcast/config`) and `Server.reload` applies it: a key
that fills a field of the broker's settings is applied by `Broker.change_limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from nearcast.config import Configuration, LogSection, all_settings

AT_ONCE = frozenset(one.path for one in all_settings(Configuration) if one.reload is True)
"""The keys that `Server.reload` applies at run time."""
CONDITIONS: dict[str, Callable[[Any, Any], bool]] = {
    "log.events": lambda old, new: "off" not in (old, new),  # switching on or off needs files
}
"""Keys of which `Server.reload` applies some changes: whether that from one value to another."""


def changed_keys(old: Configuration, new: Configuration) -> list[str]:
    """Return the keys that differ, such as `limits.queue`; lists count as a whole."""
    found: list[str] = []
    before, after = old.model_dump(), new.model_dump()
    for section, value in after.items():
        if not isinstance(value, dict):
            found += [section] if value != before[section] else []
            continue
        found += [f"{section}.{key}" for key, each in value.items() if each != before[section][key]]
    return found


def is_at_once(key: str, old: Configuration, new: Configuration) -> bool:
    """Return whether a change of this key takes effect without a restart."""
    if key in CONDITIONS:
        read = attrgetter(key)
        return CONDITIONS[key](read(old), read(new))
    return key in AT_ONCE


def merged(old: Configuration, new: Configuration) -> tuple[Configuration, list[str], list[str]]:
    """Return the configuration now in force, the keys applied, and those that need a restart."""
    changed = changed_keys(old, new)
    now = [key for key in changed if is_at_once(key, old, new)]
    sections: dict[str, Any] = {}
    for key in now:
        section, _, name = key.partition(".")
        current = sections.get(section, getattr(old, section))
        value = getattr(getattr(new, section), name)
        sections[section] = current.model_copy(update={name: value})
    later = [key for key in changed if key not in now]
    return old.model_copy(update=sections), now, later


def log_share(section: LogSection) -> float:
    """Return the fraction of runs that the event log keeps."""
    return section.sample if section.events == "sampled" else 1.0
