"""Configuration reload: which keys take effect at once, and which need a restart.

Limits announced to clients at CONNECT (packet size, window), open resources (listeners, files) and
settings that the broker was built with need a restart; the log names those keys. To let another key
take effect, add it to `AT_ONCE` and to `Server.reload`.
"""

from __future__ import annotations

from typing import Any

from nearcast.config import Configuration, LogSection

AT_ONCE = frozenset(
    {
        "auth.anonymous",
        "auth.users",
        "auth.rules",
        "limits.connections",
        "limits.queue",
        "limits.total_queue",
        "limits.session_expiry",
        "limits.connect_packet",
        "limits.connect_timeout",
        "limits.sessions",
        "limits.subscriptions",
        "limits.client_subscriptions",
        "limits.client_near",
        "limits.filters",
        "limits.where",
        "limits.retained",
        "limits.retained_bytes",
        "limits.answers",
        "limits.keep_alive",
        "log.level",
        "log.sample",
    }
)
"""The keys that `Server.reload` applies at run time."""


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
    if key == "log.events":  # from sampled to full and back; switching on or off needs files
        return "off" not in (old.log.events, new.log.events)
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
