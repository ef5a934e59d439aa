"""Topic filters compared with topics and with each other (MQTT 5, section 4.7)."""

from __future__ import annotations


def topic_matches(topic_filter: str, topic: str) -> bool:
    """Return whether a topic matches a filter; the definition, for one pair.

    >>> topic_matches("shops/+/food", "shops/5/food"), topic_matches("#", "$SYS/uptime")
    (True, False)
    """
    if topic[:1] == "$" and topic_filter[:1] in {"+", "#"}:
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in {"+", levels[place]}:
            return False
    return len(wanted) == len(levels)


def filters_overlap(one: str, other: str) -> bool:
    """Return whether some topic matches both filters.

    >>> filters_overlap("shops/#", "+/5"), filters_overlap("shops/+", "shops")
    (True, False)
    """
    wild = {"+", "#"}
    if (one[:1] == "$" and other[:1] in wild) or (other[:1] == "$" and one[:1] in wild):
        return False
    ours, theirs = one.split("/"), other.split("/")
    for mine, yours in zip(ours, theirs, strict=False):
        if "#" in (mine, yours):
            return True
        if mine != yours and not wild & {mine, yours}:
            return False
    if len(ours) == len(theirs):
        return True
    longer, shorter = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
    return longer[len(shorter) :] == ["#"]  # `a/#` matches the topic `a` itself


def filter_covers(pattern: str, topic_filter: str) -> bool:
    """Return whether every topic that matches `topic_filter` matches `pattern` too.

    >>> filter_covers("a/#", "a/+/c"), filter_covers("a/+", "a/#")
    (True, False)
    >>> filter_covers("#", "$SYS/#")
    False
    """
    wanted, given = pattern.split("/"), topic_filter.split("/")
    if wanted[0] in ("+", "#") and given[0].startswith("$"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(given) or given[place] == "#":
            return False
        if level != "+" and level != given[place]:
            return False
    return len(wanted) == len(given)
