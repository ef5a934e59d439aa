"""Publishing: how many subscribers get a message, by which rank, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.client.pairs import Pairs, one_of, paho_properties
from nearcast.model import Shape, encode_level, parse_duration, parse_shape
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.ranks import parse_rank
from nearcast.model.requests import ORDERS, REPLIES
from nearcast.model.wording import shown

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """How a message is distributed; options left out follow the space's defaults.

    >>> Offer(top=3, rank="nearest", lifetime="30s").pairs
    (('$top', '3'), ('$rank', 'nearest'), ('$lifetime', '30s'))
    >>> Offer(top=3, rank="nearest").topic("orders/new")
    '$top/3/$rank/nearest/orders/new'
    >>> Offer(top=0)
    Traceback (most recent call last):
        ...
    nearcast.model.errors.OutOfRangeError: $top: found 0; expected a whole number from 1
    """

    top: int | None = None
    """Only this many best matches get the message."""
    rank: str | None = None
    """`narrowest`, `nearest`, `centre`, `weight`, or a blend: `narrowest:0.7,weight:0.3`."""
    lifetime: str | None = None
    """The message is discarded if it cannot be delivered within this time, such as `250ms`."""
    area: str | Shape | None = None
    """An extent of the event itself, instead of a point."""
    order: str | None = None
    """`causal`: delivered after its causal predecessors."""
    reply: str | None = None
    """`matches`: the broker publishes the ranked list to the response topic. MQTT 5 only."""
    deliver: bool | None = None
    """With `reply`: whether the matches also get the message. MQTT 5 only."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Attribute values, for spaces that read them from user properties. MQTT 5 only."""

    def __post_init__(self) -> None:
        if self.top is not None:
            _check_top(self.top)
        if self.rank is not None:
            _check_rank(self.rank)
        for value, where, known in (
            (self.order, "$order", ORDERS),
            (self.reply, "$reply", REPLIES),
        ):
            if value is not None:
                one_of(value, where, known)
        if self.lifetime is not None:
            _check_lifetime(self.lifetime)
        if isinstance(self.area, str):
            parse_shape(self.area)

    @property
    def pairs(self) -> Pairs:
        """Return the user properties of PUBLISH, for any MQTT 5 client; values come first."""
        values = ((name, str(value)) for name, value in self.values.items())
        area = () if self.area is None else (("$area", str(self.area)),)
        return (*values, *self._short_pairs(), *area, *self._reply_pairs())

    def _reply_pairs(self) -> Pairs:
        deliver = None if self.deliver is None else str(self.deliver).lower()
        named = (("$reply", self.reply), ("$deliver", deliver))
        return tuple((name, value) for name, value in named if value is not None)

    def _short_pairs(self) -> Pairs:
        named = (
            ("$top", None if self.top is None else str(self.top)),
            ("$rank", self.rank),
            ("$lifetime", self.lifetime),
            ("$order", self.order),
        )
        return tuple((name, value) for name, value in named if value is not None)

    def properties(
        self,
        base: Properties | None = None,
        *,
        response_topic: str | None = None,
        correlation: bytes | None = None,
    ) -> Properties:
        """Return paho's properties for `publish`.

        >>> Offer(top=5, reply="matches").properties(response_topic="me/answers").ResponseTopic
        'me/answers'
        """
        named = response_topic or getattr(base, "ResponseTopic", None)
        if self.reply is not None and named is None:
            raise MisuseError(
                "a reply without a response topic", expected="response_topic='…'", where="$reply"
            )
        properties = paho_properties("PUBLISH", self.pairs, base)
        if response_topic is not None:
            properties.ResponseTopic = response_topic
        if correlation is not None:
            properties.CorrelationData = correlation
        return properties

    def topic(self, topic: str) -> str:
        """Return the topic with this offer in front of it, for MQTT 3.1.1.

        >>> Offer(area="bbox(2.2, 48.8, 2.5, 48.9)", lifetime="1min").topic("alerts/storm")
        '$lifetime/1min/$area/2.2,48.8,2.5,48.9/alerts/storm'
        """
        unsaid = [name for name, _ in self._reply_pairs()] + ["values"] * bool(self.values)
        if unsaid:
            raise MisuseError(
                ", ".join(unsaid),
                where="a prefixed topic",
                expected="top, rank, lifetime, order, area",
                todo="Use properties() with MQTT 5.",
            )
        levels = [
            part for name, value in self._short_pairs() for part in (name, encode_level(value))
        ]
        if self.area is not None:
            shape = parse_shape(self.area) if isinstance(self.area, str) else self.area
            levels += ["$area", shape.level()]
        return "/".join([*levels, topic])


def _check_top(top: object) -> None:
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise OutOfRangeError(shown(top), where="$top", expected="a whole number from 1")


def _check_rank(text: str) -> None:
    try:
        parse_rank(text)
    except MisuseError as problem:
        raise _placed("$rank", problem) from None


def _placed(name: str, problem: MisuseError) -> MisuseError:
    where = f"{name}: {problem.where}" if problem.where else name
    return type(problem)(problem.found, where=where, expected=problem.expected, todo=problem.todo)


def _check_lifetime(text: str) -> None:
    try:
        lifetime_s = parse_duration(text)
    except MisuseError as problem:
        raise _placed("$lifetime", problem) from None
    if lifetime_s <= 0:
        raise OutOfRangeError(shown(text), where="$lifetime", expected="a duration above 0")
