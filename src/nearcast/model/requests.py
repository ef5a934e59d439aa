"""Requests of clients beside topic and payload: one grammar for user properties and prefixes.

| on | names |
|---|---|
| SUBSCRIBE, also as prefixes | `$where` `$area` `$near` `$retained` |
| SUBSCRIBE | `$explain` `$label` `$weight` `$distance` |
| PUBLISH, also as prefixes | `$top` `$rank` `$lifetime` `$order` `$area` |
| PUBLISH | `$reply` `$deliver` |

A prefix is the name and, behind a slash, the value as one level: `$near/500m/shops/#`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from nearcast.model.errors import LimitError, MisuseError, OutOfRangeError, UnknownNameError
from nearcast.model.quantities import as_number, parse_duration, parse_length
from nearcast.model.ranks import parse_rank, rank_text
from nearcast.model.shape_text import Shape, parse_shape
from nearcast.model.subscription import RETAINED_CHOICES, Subscription
from nearcast.model.where.grammar import parse_where
from nearcast.model.where.levels import decode_level
from nearcast.model.wording import did_you_mean, shown

ORDERS: Final = ("causal",)
REPLIES: Final = ("matches",)

SELECTING: Final = ("$where", "$area", "$near", "$retained")
SUBSCRIBING: Final = (*SELECTING, "$explain", "$label", "$weight", "$distance")
INSTRUCTING: Final = ("$top", "$rank", "$lifetime", "$order", "$area")
PUBLISHING: Final = (*INSTRUCTING, "$reply", "$deliver")

LONGEST_LIFETIME_S: Final = 0xFFFF_FFFF
"""The limit of MQTT's message expiry interval: 136 years."""
_LONGEST_LABEL = 256

Pair = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequest:
    """A subscription, and options of its deliveries; the latter are not part of its identity."""

    subscription: Subscription
    explain: bool = False
    label: str | None = None
    weight: float = 1.0
    shares_m: float | None = None

    @property
    def is_selective(self) -> bool:
        """Return whether its identity is more than its topic filter."""
        asked = self.subscription
        parts = (asked.where, asked.area, asked.near_m, asked.retained)
        return any(part is not None for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """How many receivers, in which rank, until when; None: the space's default."""

    top: int | None = None
    rank: str | None = None
    lifetime_ms: int | None = None
    order: str | None = None
    area: Shape | None = None
    reply: str | None = None
    deliver: bool | None = None


NO_REQUEST: Final = PublishRequest()


def split_prefixes(text: str, names: Iterable[str]) -> tuple[tuple[Pair, ...], str]:
    """Split leading `name/value/` levels off a filter or topic; values stay encoded. O(length).

    >>> split_prefixes("$near/500m/$retained/now/shops/#", SELECTING)
    ((('$near', '500m'), ('$retained', 'now')), 'shops/#')
    >>> split_prefixes("shops/$near/500m", SELECTING)
    ((), 'shops/$near/500m')
    """
    known = frozenset(names)
    found: list[Pair] = []
    levels = text.split("/") if text[:1] == "$" else [text]
    at = 0
    while levels[at] in known:
        name = levels[at]
        if len(levels) < at + 3 or (len(levels) == at + 3 and not levels[-1]):
            raise MisuseError(
                shown(text), where=name, expected=f"{name}/<value>/<what it is in front of>"
            )
        found.append((name, levels[at + 1]))
        at += 2
    return tuple(found), "/".join(levels[at:])


def decoded(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return the pairs of prefixes decoded, as user properties would have them."""
    return tuple((name, _told(name, decode_level, value)) for name, value in pairs)


def read_subscription(topic_filter: str, pairs: Iterable[Pair]) -> SubscribeRequest:
    """Return the request in these properties of a filter; other names are ignored.

    Raises MisuseError or a kind of it, with the name and the position within its value.

    >>> asked = read_subscription("shops/#", [("$near", "500m"), ("$label", "me")])
    >>> asked.subscription.identity, asked.label
    ('$near/500m/shops/#', 'me')
    """
    given = _each_once(pairs, SUBSCRIBING)
    near_m = _read(given, "$near", parse_length)
    try:
        subscription = Subscription(
            topic_filter=topic_filter,
            where=_read(given, "$where", parse_where),
            area=_read(given, "$area", parse_shape),
            near_m=near_m,
            retained=_read(given, "$retained", _one_of(RETAINED_CHOICES)),
        )
    except OutOfRangeError as problem:  # a radius beyond the far side of the earth
        raise problem if problem.where.startswith("$") else _placed("$near", problem) from None
    weight = _read(given, "$weight", as_number)
    return SubscribeRequest(
        subscription=subscription,
        explain=_read(given, "$explain", _truth) or False,
        label=_read(given, "$label", _label),
        weight=1.0 if weight is None else weight,
        shares_m=_read(given, "$distance", parse_length),
    )


def parse_identity(text: str) -> Subscription:
    """Return the subscription of an identity, as logs have it: share group, prefixes, filter.

    >>> parse_identity("$share/g/$where/price%20<%205/shops/#").topic_filter
    'shops/#'
    """
    bare = text.split("/", 2)[2] if text.startswith("$share/") else text
    prefixes, topic_filter = split_prefixes(bare, SELECTING)
    return read_subscription(topic_filter, decoded(prefixes)).subscription


def read_publication(pairs: Iterable[Pair]) -> PublishRequest:
    """Return the request in these properties of a publication; other names are ignored.

    >>> asked = read_publication([("$top", "3"), ("$rank", "nearest"), ("$lifetime", "250ms")])
    >>> asked.top, asked.rank, asked.lifetime_ms
    (3, 'nearest', 250)
    """
    given = _each_once(pairs, PUBLISHING)
    if not given:
        return NO_REQUEST
    return PublishRequest(
        top=_read(given, "$top", _count),
        rank=_read(given, "$rank", _rank),
        lifetime_ms=_read(given, "$lifetime", _milliseconds),
        order=_read(given, "$order", _one_of(ORDERS)),
        area=_read(given, "$area", parse_shape),
        reply=_read(given, "$reply", _one_of(REPLIES)),
        deliver=_read(given, "$deliver", _truth),
    )


def _each_once(pairs: Iterable[Pair], names: tuple[str, ...]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            continue
        if name in given:
            raise MisuseError(
                f"{shown(given[name])} and {shown(value)}", where=name, expected="one value"
            )
        given[name] = value
    return given


def _read(given: Mapping[str, str], name: str, read: Callable[[str], T]) -> T | None:
    value = given.get(name)
    return None if value is None else _told(name, read, value)


def _told(name: str, read: Callable[[str], T], value: str) -> T:
    """Return the value as read; an error names the property."""
    try:
        return read(value)
    except MisuseError as problem:
        raise _placed(name, problem) from None


def _placed(name: str, problem: MisuseError) -> MisuseError:
    problem.where = f"{name}: {problem.where}" if problem.where else name
    return problem


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) >= 1):
        raise OutOfRangeError(shown(text), expected="a whole number from 1")
    return int(text)


def _milliseconds(text: str) -> int:
    lifetime_s = parse_duration(text)
    if lifetime_s <= 0:
        raise OutOfRangeError(shown(text), expected="a duration above 0")
    if lifetime_s > LONGEST_LIFETIME_S:
        raise OutOfRangeError(shown(text), expected=f"at most {LONGEST_LIFETIME_S}s")
    return math.ceil(round(lifetime_s * 1000, 6))


def _rank(text: str) -> str:
    return rank_text(parse_rank(text))


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise UnknownNameError(shown(text), expected="true or false")
    return text == "true"


def _label(text: str) -> str:
    if not text or len(text) > _LONGEST_LABEL:
        raise LimitError(
            f"a label of {len(text)} characters", expected=f"1 to {_LONGEST_LABEL} characters"
        )
    return text


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text in known:
            return text
        expected = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        raise UnknownNameError(shown(text), expected=expected, todo=did_you_mean(text, known))

    return read
