"""Spaces: what conditions may be about; and whether a subscription would be accepted."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from nearcast.config import SpaceSection
from nearcast.index.topic_filters import filters_overlap
from nearcast.model import ExpressionError, MisuseError
from nearcast.model.requests import read_subscription
from nearcast.mqtt import MqttProtocolError
from nearcast.mqtt.topics import check_topic_filter
from nearcast.server.http.endpoint import Call, endpoint

_Text = Annotated[str, msgspec.Meta(max_length=20_000)]


class AttributeRow(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute: a number from `low` to `high`, or one of `categories`."""

    name: str
    kind: str
    low: float | None
    high: float | None
    categories: list[str] | None
    path: str | None


class SpaceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A space as it is configured."""

    name: str
    topics: str
    values: str
    longitude: str | None
    latitude: str | None
    attributes: list[AttributeRow]
    top: int | None
    rank: str
    lifetime_s: float | None
    order: str | None
    missing: str
    positions: str


class SpaceList(msgspec.Struct, frozen=True):
    """All spaces."""

    items: list[SpaceRow]


class SubscriptionDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription before it is made; `area` is text as behind `$area`, or a GeoJSON geometry."""

    filter: Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
    where: _Text | None = None
    area: _Text | dict[str, Any] | None = None
    near: Annotated[float, msgspec.Meta(gt=0)] | None = None


class SubscriptionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it would be accepted; `text` is the filter as an MQTT client writes it."""

    ok: bool
    text: str | None = None
    spaces: list[str] = []
    problem: str | None = None
    where: str | None = None
    position: int | None = None


@endpoint("GET", "/api/spaces")
def spaces(call: Call) -> SpaceList:
    """Return the spaces: their topics, attributes and defaults."""
    return SpaceList([_row(one) for one in call.site.sources.configuration().space])


@endpoint("POST", "/api/subscriptions/check", body=SubscriptionDraft, changes=False)
def check_subscription(call: Call) -> SubscriptionCheck:
    """Return the text of a subscription, or what is wrong with it; nothing is subscribed to."""
    body: SubscriptionDraft = call.body
    declared = [one.space for one in call.site.node.spaces]
    try:
        try:
            check_topic_filter(body.filter)
        except MqttProtocolError as problem:
            raise MisuseError(
                problem.found, where="filter", expected=problem.expected or "a topic filter"
            ) from None
        asked = read_subscription(body.filter, _pairs(body)).subscription
        found = [one for one in declared if filters_overlap(one.topic_filter, body.filter)]
        if asked.identity != body.filter:
            from nearcast.matching.subscription_compiler import spaces_for  # it loads NumPy

            found = spaces_for(asked, declared)
            for one in found:
                asked.boxes(one, (0.0, 0.0))
    except MisuseError as problem:
        position = problem.position if isinstance(problem, ExpressionError) else None
        return SubscriptionCheck(
            ok=False, problem=str(problem), where=problem.where, position=position
        )
    return SubscriptionCheck(ok=True, text=asked.identity, spaces=[one.name for one in found])


def _pairs(body: SubscriptionDraft) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    if body.where:
        pairs.append(("$where", body.where))
    if body.area:
        text = body.area if isinstance(body.area, str) else json.dumps(body.area)
        pairs.append(("$area", text))
    if body.near is not None:
        pairs.append(("$near", f"{body.near!r}m"))
    return pairs


def _row(section: SpaceSection) -> SpaceRow:
    return SpaceRow(
        name=section.name,
        topics=section.topics,
        values=section.values,
        longitude=section.longitude,
        latitude=section.latitude,
        attributes=[
            AttributeRow(
                name=name,
                kind="number" if one.categories is None else "category",
                low=one.low,
                high=one.high,
                categories=one.categories,
                path=one.path,
            )
            for name, one in section.attributes.items()
        ],
        top=section.top,
        rank=section.rank,
        lifetime_s=section.lifetime,
        order=section.order,
        missing=section.missing,
        positions=section.positions,
    )
