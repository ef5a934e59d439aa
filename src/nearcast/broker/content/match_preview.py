"""Match preview: a ranked list of the subscribers an event would reach, by their public labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import merge

from nearcast.broker.content.top_k import Candidate, TopK
from nearcast.broker.event_log_hooks import note_event
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import PublishProperties
from nearcast.broker.publish.routes import Route
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.model import Event, MisuseError
from nearcast.model.wording import shown
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.properties import Properties, encode_property_content
from nearcast.mqtt.wire import encode_string


class MatchPreview:
    """Answers `$reply` = `matches`.

    The list counts labels: a client with two labelled subscriptions may be listed twice.
    Subscriptions without a label are neither listed nor counted.
    """

    def __init__(self, state: BrokerState, delivery: Delivery, choosing: TopK | None) -> None:
        self._state = state
        self._delivery = delivery
        self._choosing = choosing

    def answer(
        self,
        session: Session | None,
        route: Route,
        message: Message,
        event: Event | None,
        asked: tuple[int | None, str],
        complaint: str,
        properties: PublishProperties,
    ) -> None:
        """Publish the list to the response topic; raises MisuseError if the client may not."""
        topic = checked_response_topic(self._state, session, properties.response_topic)
        found = self._labelled(session, route, event, *asked)
        hides = _hides(route)
        document: dict[str, object] = {
            "matches": [_row(place, one, session, hides) for place, one in enumerate(found, 1)]
        }
        if complaint:
            document["problem"] = complaint
        reply_to(self._state, self._delivery, topic, document, message.head.qos, properties)

    def _labelled(
        self, session: Session | None, route: Route, event: Event | None, k: int | None, rank: str
    ) -> list[Candidate]:
        found: list[Candidate] = []
        seen: set[int] = set()
        for one in self._ranked(session, route, event, k, rank):
            subscription = one.subscription
            if k is not None and len(found) == k:
                break
            is_own = subscription.no_local and subscription.session is session
            if subscription.label is None or is_own or subscription.number in seen:
                continue
            seen.add(subscription.number)
            found.append(one)
        return found

    def _ranked(
        self, session: Session | None, route: Route, event: Event | None, k: int | None, rank: str
    ) -> Iterator[Candidate]:
        """Yield the matches that the asking client may learn of, best first.

        Where positions are private, `$near` subscriptions of others are those that are shown, at
        their coarse places; the exact ones have no influence.
        """
        assert self._choosing is not None
        ranked = self._choosing.ranked(route, event, k, rank)
        selections = self._state.selections
        if not _hides(route) or selections is None:
            return ranked
        known = (one for one in ranked if not _is_hidden(one, session))
        if not selections.shown.by_number:
            return known
        shown = TopK(selections.shown).ranked(Route(), event, k, rank)
        return merge(known, (one for one in shown if one.subscription.session is not session))


def _hides(route: Route) -> bool:
    return route.space is not None and route.space.hides_positions


def _is_hidden(candidate: Candidate, session: Session | None) -> bool:
    subscription = candidate.subscription
    return subscription.is_near and subscription.session is not session


def checked_response_topic(state: BrokerState, session: Session | None, topic: str | None) -> str:
    """Return the response topic if the client may publish to it, or raise MisuseError."""
    if topic is None:
        raise MisuseError("no response topic", where="$reply", expected="an MQTT 5 response topic")
    allowed = not topic.startswith("$") and (
        session is None or state.access.may_publish(session.user_name, session.client_id, topic)
    )
    if not allowed:
        raise MisuseError(
            shown(topic), where="response topic", expected="one that you may publish to, without $"
        )
    try:
        state.router.checked(encode_string(topic))
    except MqttProtocolError as problem:
        raise MisuseError(
            problem.found, where="response topic", expected=problem.expected
        ) from None
    return topic


def reply_to(
    state: BrokerState,
    delivery: Delivery,
    topic: str,
    document: object,
    qos: int,
    properties: PublishProperties,
) -> None:
    """Publish an answer as JSON to the plain subscribers of a topic."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # JSON may have a lone surrogate, UTF-8 may not: it stays in its escaped form.
    payload = text.encode(errors="backslashreplace")
    content = encode_property_content(
        Properties(
            payload_format_indicator=1,
            content_type="application/json",
            correlation_data=properties.correlation,
        )
    )
    raw = encode_string(topic)
    answer = Message(MessageHead(raw, len(payload), qos, content), payload)
    route = state.router.find(raw)
    if not route.is_empty:
        note_event(state, answer, "")
        delivery.spread(route, [answer], None, retain=False)


def _row(
    place: int, candidate: Candidate, session: Session | None, hides: bool
) -> dict[str, object]:
    return {
        "rank": place,
        "label": candidate.subscription.label,
        "accuracy": round(candidate.accuracy, 6),
        "distance_m": _told_distance(candidate, session, hides),
    }


def _told_distance(candidate: Candidate, session: Session | None, hides: bool) -> float | None:
    """Return the distance as a publisher may learn it: in the subscriber's steps, if it agreed."""
    away_m, step_m = candidate.distance_m, candidate.subscription.shares_m
    if away_m is None:
        return None
    if step_m is not None:
        return round(round(away_m / step_m) * step_m, 1)
    is_own = candidate.subscription.session is session
    return None if hides and not is_own else round(away_m, 1)
