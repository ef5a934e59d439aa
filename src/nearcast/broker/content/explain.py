"""Explains step by step, as plain data, why a client got or did not get a message.

    {"client": "ann", "topic": "shops/1", "delivered": false,
     "because": "conditions: price < 10 is not true of the event",
     "steps": [{"step": "client", "ok": true, "detail": "connected"}, …]}

It evaluates the broker's current state and changes nothing. The steps are those of a publication;
the first that is not ok decides, and the ones behind it are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nearcast.broker.content.probes import POSITIONS_RIGHT
from nearcast.broker.content.spaces import SpaceSettings
from nearcast.broker.content.top_k import TopK
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.index.topic_filters import topic_matches
from nearcast.model import (
    Event,
    MisuseError,
    NearcastError,
    PublishRequest,
    Space,
    distance_m,
    read_publication,
    split_prefixes,
    where_text,
)
from nearcast.model import Subscription as Selection
from nearcast.model.event_decoder import Pairs
from nearcast.model.requests import INSTRUCTING, decoded
from nearcast.model.where.expression import names_in
from nearcast.mqtt.errors import MqttProtocolError
from nearcast.mqtt.topics import check_topic_name
from nearcast.mqtt.wire import encode_string


@dataclass(frozen=True, slots=True)
class ExplainQuestion:
    """A message as it was, or might be, published, and the client in question."""

    client_id: str
    topic: str
    payload: bytes = b""
    pairs: Pairs = ()
    qos: int = 0
    publisher: str | None = None  # a client identifier; None: ACL rules to publish are not checked
    asker: str | None = None  # who may learn of its own position
    sees_positions: bool = True  # whether the asker may learn those of others


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """The result of one step."""

    step: str
    ok: bool
    detail: str


def explain(state: BrokerState, question: ExplainQuestion) -> dict[str, object]:
    """Return the verdict; O(subscriptions of the client), plus a ranking where `$top` applies."""
    steps: list[ExplainStep] = []
    for step in _Inquiry(state, question).steps():
        steps.append(step)
        if not step.ok:
            break
    last = steps[-1]
    return {
        "client": question.client_id,
        "topic": question.topic,
        "delivered": last.ok,
        "because": f"{last.step}: {last.detail}",
        "steps": [{"step": one.step, "ok": one.ok, "detail": one.detail} for one in steps],
    }


class _Inquiry:
    """One question and what is known after each step."""

    def __init__(self, state: BrokerState, question: ExplainQuestion) -> None:
        self._state = state
        self._question = question
        self._topic = question.topic
        self._request = PublishRequest()
        self._session: Session | None = None
        self._event: Event | None = None
        self._fitting: list[SessionSubscription] = []
        self._wanting: list[SessionSubscription] = []

    def steps(self) -> Iterator[ExplainStep]:
        yield self._look_at_message()
        yield self._look_at_client()
        yield self._look_at_topic()
        yield self._look_at_rules()
        settings = self._state.router.spaces.of_topic(self._topic)
        if settings is not None:
            yield self._look_at_values(settings)
            yield from self._look_at_selections()
            yield from self._look_at_rank(settings)
        yield from self._look_at_lifetime(settings)
        yield self._look_at_queue()

    # --- the message and the client -------------------------------------------------------

    def _look_at_message(self) -> ExplainStep:
        try:
            prefixes, self._topic = split_prefixes(self._question.topic, INSTRUCTING)
            check_topic_name(self._topic)
            if self._state.router.spaces.of_topic(self._topic) is not None:
                pairs = (*decoded(prefixes), *self._question.pairs)
                self._request = read_publication(pairs)
        except (MisuseError, MqttProtocolError) as problem:
            return ExplainStep("message", False, str(problem))
        if self._request.reply is not None and not self._request.deliver:
            return ExplainStep(
                "message", False, "$reply asks without sending, and $deliver is not true"
            )
        return ExplainStep("message", True, f"published to {self._topic!r}")

    def _look_at_client(self) -> ExplainStep:
        self._session = self._state.sessions.get(self._question.client_id)
        if self._session is None:
            return ExplainStep("client", False, "there is no session of this name")
        if self._session.link is None:
            return ExplainStep("client", True, "not connected; its session is kept")
        return ExplainStep("client", True, "connected")

    @property
    def _is_own(self) -> bool:
        """Whether the asker is the client in question."""
        return self._question.asker == self._question.client_id

    def _hides(self, space: Space) -> bool:
        """Return whether positions of others must not show in the answer."""
        if self._question.sees_positions:
            return False
        return any(one.space is space and one.hides_positions for one in self._spaces)

    @property
    def _spaces(self) -> tuple[SpaceSettings, ...]:
        return self._state.router.spaces.all

    @property
    def _client(self) -> Session:
        assert self._session is not None
        return self._session

    def _look_at_topic(self) -> ExplainStep:
        self._fitting = [
            subscription
            for subscription in self._client.subscriptions.values()
            if topic_matches(subscription.topic_filter, self._topic)
            and not (subscription.no_local and self._question.publisher == self._question.client_id)
        ]
        if not self._fitting:
            known = ", ".join(list(self._client.subscriptions)[:5]) or "none"
            return ExplainStep(
                "topic", False, f"no subscription fits the topic; there are: {known}"
            )
        return ExplainStep(
            "topic", True, "subscribed by " + ", ".join(one.text for one in self._fitting)
        )

    def _look_at_rules(self) -> ExplainStep:
        access = self._state.access
        publisher = self._question.publisher
        if publisher is not None:
            known = self._state.sessions.get(publisher)
            name = None if known is None else known.user_name
            if not access.may_publish(name, publisher, self._topic):
                why = access.refusal(name, publisher, self._topic, subscribes=False)
                detail = f"{publisher} may not publish to {self._topic!r}: {why}"
                return ExplainStep("rules", False, detail)
        client, asked = self._client, self._fitting[0].topic_filter
        self._fitting = [
            one
            for one in self._fitting
            if access.may_subscribe(client.user_name, client.client_id, one.topic_filter)
        ]
        if not self._fitting:
            why = access.refusal(client.user_name, client.client_id, asked, subscribes=True)
            return ExplainStep(
                "rules", False, f"the client may no longer subscribe to {asked!r}: {why}"
            )
        return ExplainStep("rules", True, "allowed")

    # --- spaces ---------------------------------------------------------------------------

    def _look_at_values(self, settings: SpaceSettings) -> ExplainStep:
        selections = self._state.selections
        assert selections is not None
        question = self._question
        try:
            self._event = selections.readers[settings.space.name].read(
                self._topic, question.payload, question.pairs, self._request.area
            )
        except MisuseError as problem:
            is_fatal = all(one.selection is not None for one in self._fitting)
            detail = f"no place in space {settings.space.name}: {problem}"
            return ExplainStep("values", not is_fatal, detail)
        return ExplainStep(
            "values", True, f"an event of space {settings.space.name}{self._lacks(settings)}"
        )

    def _lacks(self, settings: SpaceSettings) -> str:
        """Return which values the event does not have, and which fields it has instead."""
        event, selections = self._event, self._state.selections
        assert event is not None
        assert selections is not None
        names = _missing_names(event)
        if not names:
            return ""
        reader = selections.readers[settings.space.name]
        hint = reader.missing_text(event, self._question.payload, self._question.pairs)
        told = f"; no value for {', '.join(names)}, which fits "
        told += "every condition" if settings.space.missing == "all" else "no condition"
        return told + (f" ({hint})" if hint else "")

    def _look_at_selections(self) -> Iterator[ExplainStep]:
        """Check each subscription; one that matches the event is enough."""
        troubles: list[ExplainStep] = []
        for one in self._fitting:
            trouble = self._trouble(one)
            if trouble is None:
                self._wanting.append(one)
            else:
                troubles.append(trouble)
        if self._wanting:
            detail = "wanted by " + ", ".join(one.text for one in self._wanting)
            yield ExplainStep("conditions", True, detail)
        else:
            yield (
                troubles[0]
                if len(troubles) == 1
                else ExplainStep(troubles[0].step, False, "; ".join(one.detail for one in troubles))
            )

    def _trouble(self, one: SessionSubscription) -> ExplainStep | None:
        """Return why a subscription does not match the event, or None."""
        selection, event = one.selection, self._event
        if selection is None:
            return None
        if event is None:
            return ExplainStep(
                "conditions", False, f"{one.text} needs an event with a place in the space"
            )
        try:
            return _condition_trouble(selection, event) or self._position_trouble(one, event)
        except NearcastError as problem:  # a filter over several spaces: this one lacks something
            return ExplainStep("conditions", False, str(problem))

    def _position_trouble(self, one: SessionSubscription, event: Event) -> ExplainStep | None:
        selection, position = one.selection, self._client.position
        assert selection is not None
        if selection.near_m is None:
            return None
        if self._hides(event.space) and not self._is_own:
            return ExplainStep("position", False, _PRIVATE)
        if position is None:
            return ExplainStep("position", False, "nobody knows where the client is")
        if selection.covers(event, position):
            return None
        detail = f"the event is not within {selection.near_m:.0f} m"
        if event.position is not None:
            lon, lat = event.position
            detail += f" ({distance_m(*position, lon, lat):.0f} m away)"
            if abs(lon) <= 90 and distance_m(*position, lat, lon) <= selection.near_m:
                detail += "; with its longitude and latitude swapped it would be"
        return ExplainStep("position", False, detail)

    def _look_at_rank(self, settings: SpaceSettings) -> Iterator[ExplainStep]:
        top = self._request.top or settings.top
        if top is None:
            return
        rank = self._request.rank or settings.rank
        selections, client = self._state.selections, self._client
        assert selections is not None
        if settings.offline == "skipped" and client.link is None:
            yield ExplainStep("rank", False, "the client is away, and the space skips those")
            return
        if self._hides(settings.space) and selections.near:
            yield ExplainStep("rank", False, _PRIVATE)
            return
        route = self._state.router.find(encode_string(self._topic))
        skips = settings.offline == "skipped"
        publisher = self._question.publisher
        chosen = TopK(selections).best(
            route,
            self._event,
            None,
            rank,
            lambda one: (
                not (
                    (skips and one.session.link is None)
                    or one.session.is_onlooker
                    or (one.no_local and one.session.client_id == publisher)
                )
            ),
        )
        places = [one.place for one in chosen if one.candidate.subscription.session is client]
        place = min(places, default=None)
        if place is None:
            yield ExplainStep("rank", False, "another member of its share group fits better")
        else:
            detail = f"place {place} of {len(chosen)} by {rank}; $top is {top}"
            yield ExplainStep("rank", place <= top, detail)

    # --- time and room --------------------------------------------------------------------

    def _look_at_lifetime(self, settings: SpaceSettings | None) -> Iterator[ExplainStep]:
        lifetime_ms = self._request.lifetime_ms
        if lifetime_ms is None and settings is not None:
            lifetime_ms = settings.lifetime_ms
        if lifetime_ms is not None:
            detail = f"{lifetime_ms} ms from its publication"
            is_late = self._client.link is None
            yield ExplainStep(
                "lifetime", True, detail + ("; the client is away" if is_late else "")
            )

    def _look_at_queue(self) -> ExplainStep:
        client, link = self._client, self._client.link
        wanting = self._wanting or self._fitting
        qos = min(self._question.qos, max(one.qos for one in wanting))
        limit = self._state.settings.session_queue_bytes
        if link is None and not qos:
            return ExplainStep("queue", False, "at QoS 0 nothing waits for a client that is away")
        is_hidden = client.moving and not self._is_own
        if is_hidden and any(self._hides(one.space) for one in self._spaces):
            return ExplainStep("queue", True, f"it goes out at QoS {qos}, or waits")
        if link is None:
            is_full = client.held_bytes + len(self._question.payload) > limit
            detail = "its queue is full" if is_full else f"it waits with {len(client.queue)} others"
            return ExplainStep("queue", not is_full, detail)
        if not qos and link.outbox_bytes + len(self._question.payload) > limit:
            return ExplainStep("queue", False, "the client reads too slowly")
        return ExplainStep("queue", True, f"it goes out at QoS {qos}")


_PRIVATE = (
    "it depends on where clients are, which is private in this space; "
    f"the right to publish to {POSITIONS_RIGHT} shows it"
)


def _missing_names(event: Event) -> list[str]:
    """Return the attributes that an event has no value for."""
    pairs = zip(event.space.attributes, event.values, strict=True)
    return [attribute.name for attribute, value in pairs if value is None]


def _condition_trouble(selection: Selection, event: Event) -> ExplainStep | None:
    """Return which of the fixed conditions the event does not meet, or None."""
    bare = replace(selection, where=None, area=None, near_m=None)
    if selection.where is not None and not replace(bare, where=selection.where).covers(event):
        detail = f"{where_text(selection.where)} is not true of the event"
        asked = names_in(selection.where)
        lacking = [name for name in _missing_names(event) if name in asked]
        if lacking:
            detail += f": it has no value for {', '.join(lacking)}"
        return ExplainStep("conditions", False, detail)
    if selection.area is not None and not replace(bare, area=selection.area).covers(event):
        return ExplainStep("conditions", False, f"the event is not in {selection.area}")
    if selection.near_m is None and not selection.covers(event):
        return ExplainStep("conditions", False, "conditions and area do not hold together")
    return None
