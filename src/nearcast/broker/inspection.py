"""What an operator may ask of a broker and order it to do; nothing else of it is slower for that.

Answers that may be long are generators, or take the whole list at once and leave it to the caller
to look at it in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from nearcast.broker.content.explain import ExplainQuestion, explain
from nearcast.broker.content.select import ContentSelection
from nearcast.broker.content.top_k import Candidate
from nearcast.broker.observer import LiveObserver
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.properties import reread_properties
from nearcast.broker.publish.routes import Route, Service
from nearcast.broker.publish.share_groups import ShareGroup
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.model import Event, MisuseError
from nearcast.model.event_decoder import Pairs
from nearcast.model.wording import shown
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.properties import Properties, encode_property_content
from nearcast.mqtt.wire import encode_string


class Draft(NamedTuple):
    """A message that an operator publishes, or asks about."""

    topic: str
    payload: bytes = b""
    pairs: Pairs = ()
    qos: int = 0
    retain: bool = False


class MatchFound(NamedTuple):
    """Who would get a message now: the first of them, and how many there are at least."""

    event: Event | None
    problem: str
    first: list[Candidate]
    total: int


class Inspection:
    """Questions and orders of operators, beside the traffic of clients."""

    def __init__(self, state: BrokerState, intake: PublishHandler) -> None:
        self._state = state
        self._intake = intake
        self._selection: ContentSelection = intake.selective.selection

    # --- questions ----------------------------------------------------------------------------

    def explain(self, question: ExplainQuestion, now_ms: int) -> dict[str, object]:
        """Return step by step why a client would get a message or not."""
        self._state.now_ms = now_ms
        return explain(self._state, question)

    def match(self, draft: Draft, top: int | None, rank: str | None, most: int) -> MatchFound:
        """Return who would get a message now, the best first; raises MisuseError."""
        message, route = self._message(draft)
        settings = route.space
        if settings is None:
            found = list(islice(_plain_receivers(route), most + 1))
            first = [Candidate(0.0, one.number, one) for one in found[:most]]
            return MatchFound(None, "", first, len(found))
        properties = reread_properties(message.head.properties)
        event, problem = self._selection.event(settings, message, properties, properties.request)
        wished = top or properties.request.top or settings.top
        order = rank or properties.request.rank or settings.rank
        best = self._selection.best(None, route, event, wished or most + 1, order)
        return MatchFound(event, problem, [one.candidate for one in best[:most]], len(best))

    def retained(self, topic_filter: str) -> Iterator[Message | None]:
        """Yield the retained messages of a filter; None for a step that found none."""
        store = self._state.retained
        return store.walk(topic_filter, store.sequence)

    def retained_message(self, topic: str) -> Message | None:
        """Return the retained message of a topic."""
        return self._state.retained.get(topic)

    def share_groups(self) -> list[ShareGroup]:
        """Return all share groups."""
        return self._state.router.groups.all()

    def content_subscriptions(self) -> list[SessionSubscription]:
        """Return all subscriptions with conditions, those of peers included. O(them)."""
        selections = self._state.selections
        return [] if selections is None else list(selections.by_number.values())

    def is_space_with_places(self, topic: str) -> bool:
        """Return whether the events of a topic have a place."""
        settings = self._state.router.spaces.of_topic(topic)
        return settings is not None and settings.space.coordinates is not None

    @property
    def retained_count(self) -> int:
        """How many retained messages there are."""
        return self._state.retained.count

    @property
    def subscription_count(self) -> int:
        """How many subscriptions clients have."""
        return self._state.subscriptions

    @property
    def held_bytes(self) -> int:
        """The bytes of all messages queued or in flight."""
        return self._state.held_bytes

    # --- orders -------------------------------------------------------------------------------

    def publish(self, draft: Draft, now_ms: int) -> str:
        """Publish a message as the broker; return what is to be said about it, or ""."""
        self._state.now_ms = now_ms
        message, route = self._message(draft)
        outcome = self._intake.publish(route, message, None, retain=draft.retain)
        return outcome.text

    def watch_with(self, observer: LiveObserver | None) -> None:
        """Report positions and deliveries to an observer from now on; None: to nobody."""
        self._state.watch = observer

    def wants(self, topic: str) -> bool:
        """Return whether anybody subscribes to a topic of the broker itself."""
        return not self._state.router.find(encode_string(topic)).is_empty

    def _message(self, draft: Draft) -> tuple[Message, Route]:
        try:
            raw = encode_string(draft.topic)
            route = self._state.router.find(raw)
        except MqttProtocolError as problem:
            raise MisuseError(
                problem.found, where="topic", expected=problem.expected or "a topic to publish to"
            ) from None
        if route.is_forbidden or route.service in (Service.POSITION, Service.EXPLAIN):
            raise MisuseError(
                shown(draft.topic), where="topic", expected="a topic that is not the broker's own"
            )
        content = encode_property_content(Properties(user_properties=tuple(draft.pairs)))
        head = MessageHead(raw, len(draft.payload), draft.qos, content)
        return Message(head, draft.payload), route


def _plain_receivers(route: Route) -> Iterator[SessionSubscription]:
    """Yield one subscription of each receiver on a route without a space."""
    by_session: Iterable[Session] = (one for one, _ in route.plain)
    for session in by_session:
        if not session.is_peer:
            yield SessionSubscription(session, "", "", "", 0)
    for session, subscriptions in route.special:
        if not session.is_peer:
            yield subscriptions[0]
    for group in route.shared:
        yield from group.members.values()
