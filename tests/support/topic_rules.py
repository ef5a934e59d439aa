"""Which topics a filter matches, by definition."""

from __future__ import annotations


def fits(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic, level by level."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(given) or level not in ("+", given[place]):
            return False
    return len(wanted) == len(given)
