"""Topics: which filters are subscribed to, and the retained messages."""

from __future__ import annotations

import base64
from collections import Counter
from http import HTTPStatus
from typing import Annotated

import msgspec

from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import reread_properties
from nearcast.model import MisuseError
from nearcast.mqtt import MqttProtocolError
from nearcast.mqtt.topics import check_topic_filter
from nearcast.server.http.endpoint import Call, Role, endpoint
from nearcast.server.http.endpoints.clients import Limit
from nearcast.server.http.endpoints.slices import in_slices, smallest
from nearcast.server.http.gathering import rows_by
from nearcast.server.http.problem import ProblemError

TopicText = Annotated[str, msgspec.Meta(min_length=1, max_length=4_000)]
_PREVIEW = 200
_LARGEST_SHOWN = 1 << 18


class TopicsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which filter on, in alphabetical order."""

    search: Annotated[str, msgspec.Meta(max_length=500)] = ""
    limit: Limit = 100
    cursor: Annotated[str, msgspec.Meta(max_length=4_000)] = ""


class FilterRow(msgspec.Struct, frozen=True):
    """A topic filter and how many subscriptions there are, with and without conditions."""

    filter: str
    subscribers: int
    with_conditions: int
    share_groups: int


class FilterPage(msgspec.Struct, frozen=True):
    """Some filters in alphabetical order."""

    items: list[FilterRow]
    total: int
    next: str | None


class RetainedQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The retained messages of a topic filter, from a topic on."""

    filter: TopicText = "#"
    limit: Limit = 100
    cursor: Annotated[str, msgspec.Meta(max_length=4_000)] = ""


class RetainedRow(msgspec.Struct, frozen=True):
    """A retained message with the beginning of its payload as text."""

    topic: str
    bytes: int
    qos: int
    expires_at: int | None
    preview: str


class RetainedPage(msgspec.Struct, frozen=True):
    """Some retained messages in the order of their topics."""

    items: list[RetainedRow]
    total: int
    next: str | None


class TopicQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One topic."""

    topic: TopicText


class RetainedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A retained message: `text` where its payload is UTF-8, else `base64`."""

    topic: str
    bytes: int
    qos: int
    expires_at: int | None
    cut: bool
    text: str | None
    base64: str | None
    properties: list[tuple[str, str]]


def _one_filter(rows: list[FilterRow]) -> FilterRow:
    """Return a filter with the subscribers of all workers; a share group spans them."""
    return FilterRow(
        rows[0].filter,
        sum(one.subscribers for one in rows),
        sum(one.with_conditions for one in rows),
        max(one.share_groups for one in rows),
    )


_OF_ALL = rows_by(lambda row: row.filter, _one_filter)


@endpoint("GET", "/api/topics", query=TopicsQuery, gather=_OF_ALL)
async def topics(call: Call) -> FilterPage:
    """Return the topic filters that clients subscribe to, with the number of subscriptions."""
    query: TopicsQuery = call.query
    everything: Counter[str] = Counter()
    selective: Counter[str] = Counter()
    groups: dict[str, set[str]] = {}
    async for session in in_slices(call.site.node.client_sessions()):
        for one in list(session.subscriptions.values()):
            if query.search and query.search not in one.topic_filter:
                continue
            everything[one.topic_filter] += 1
            selective[one.topic_filter] += one.selection is not None
            if one.group:
                groups.setdefault(one.topic_filter, set()).add(one.group)
    found, _ = await smallest(
        everything, query.limit + 1, lambda one: one, lambda one: one > query.cursor
    )
    shown = found[: query.limit]
    rows = [
        FilterRow(one, everything[one], selective[one], len(groups.get(one, ()))) for one in shown
    ]
    return FilterPage(rows, len(everything), shown[-1] if len(found) > query.limit else None)


@endpoint("GET", "/api/retained", query=RetainedQuery)
async def retained(call: Call) -> RetainedPage:
    """Return the retained messages whose topics match a filter."""
    query: RetainedQuery = call.query
    try:
        check_topic_filter(query.filter)
    except MqttProtocolError as problem:
        raise MisuseError(
            problem.found, where="filter", expected=problem.expected or "a topic filter"
        ) from None
    steps = call.site.node.inspection.retained(query.filter)
    found: list[Message] = []
    total = 0

    async for one in in_slices(steps):
        if one is not None and call.may_read(one.topic_text()):
            total += 1
            if one.topic_text() > query.cursor:
                found.append(one)
                if len(found) > 4 * query.limit + 1_000:
                    found = _first(found, query.limit + 1)
    found = _first(found, query.limit + 1)
    shown = found[: query.limit]
    following = shown[-1].topic_text() if len(found) > query.limit else None
    return RetainedPage([_row(one) for one in shown], total, following)


@endpoint("GET", "/api/retained/message", query=TopicQuery)
def retained_message(call: Call) -> RetainedMessage:
    """Return the retained message of a topic."""
    message = _known(call)
    shown = message.payload[:_LARGEST_SHOWN]
    try:
        text, raw = shown.decode(), None
    except UnicodeDecodeError:
        text, raw = None, base64.b64encode(shown).decode()
    return RetainedMessage(
        topic=message.topic_text(),
        bytes=len(message.payload),
        qos=message.head.qos,
        expires_at=message.expires_at_ms or None,
        cut=len(shown) < len(message.payload),
        text=text,
        base64=raw,
        properties=list(reread_properties(message.head.properties).user),
    )


@endpoint("DELETE", "/api/retained/message", role=Role.OPERATOR, query=TopicQuery)
def delete_retained(call: Call) -> None:
    """Delete the retained message of a topic, at all nodes; subscribers get an empty message."""
    topic = _known(call).topic_text()
    site = call.site
    if topic.startswith("$"):
        raise ProblemError(HTTPStatus.CONFLICT, f"{topic[:200]!r} is a topic of the broker itself")
    site.node.publish(topic, b"", now_ms=site.now_ms, retain=True)
    site.turns.schedule()
    site.audit(
        call.login,
        "operator_deleted_retained",
        f"deleted the retained message of {topic!r}",
        topic=topic,
    )


def _known(call: Call) -> Message:
    topic = call.query.topic
    message = call.site.node.inspection.retained_message(topic)
    if message is None or not call.may_read(topic):
        raise ProblemError(HTTPStatus.NOT_FOUND, f"nothing is retained on {topic[:200]!r}")
    return message


def _first(found: list[Message], count: int) -> list[Message]:
    return sorted(found, key=Message.topic_text)[:count]


def _row(message: Message) -> RetainedRow:
    preview = message.payload[: 4 * _PREVIEW].decode("utf-8", "replace")[:_PREVIEW]
    return RetainedRow(
        message.topic_text(),
        len(message.payload),
        message.head.qos,
        message.expires_at_ms or None,
        preview,
    )
