"""Positions of clients: they move `$near` subscriptions and trigger range entry.

Read next: `range_entry.py`.
"""

from __future__ import annotations

from nearcast.broker.content.range_entry import PlacedRetained
from nearcast.broker.content.spaces import at_grid
from nearcast.broker.event_log_hooks import note_event
from nearcast.broker.publish.acks import PublishOutcome
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.model import MisuseError, encode_level
from nearcast.model.event_decoder import Pairs, Position, position_in, read_position
from nearcast.model.quantities import number_text
from nearcast.mqtt import ReasonCode
from nearcast.mqtt.wire import MAX_LENGTH, encode_string

_TAKEN = PublishOutcome(0)
_SENSELESS = int(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


class Positions:
    """Handles positions. They are private unless a space makes them public.

    Complexity: a move costs one move of the matcher per `$near` subscription of the client, and a
    query around it where retained messages have a place.
    """

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery
        self._is_public = state.router.spaces.shows_positions

    def take(
        self, session: Session | None, payload: bytes, pairs: Pairs, *, is_sure: bool = False
    ) -> PublishOutcome:
        """Handle a publication to `$position`; at QoS 1 and 2 (`is_sure`) it survives a crash."""
        if session is None or session.link is None:
            return PublishOutcome(_SENSELESS, "$position: only connected clients have one")
        try:
            position = read_position(payload, pairs)
        except MisuseError as problem:
            self._state.counters.positions_refused += 1
            return PublishOutcome(_SENSELESS, str(problem))
        self.move(session, position, is_sure=is_sure)
        return _TAKEN

    def take_pairs(self, session: Session, pairs: Pairs) -> str:
        """Set a position from user properties, if they have one; return the error in it, or ""."""
        try:
            position = position_in(pairs)
        except MisuseError as problem:
            self._state.counters.positions_refused += 1
            return str(problem)
        if position is not None:
            self.move(session, position)
        return ""

    def move(self, session: Session, position: Position, *, is_sure: bool = False) -> None:
        """Set the position of a client."""
        state = self._state
        state.counters.positions += 1
        position = at_grid(state.settings, position)
        selections = state.selections
        if selections is None:
            session.position = position
        elif position != session.position:
            selections.move(session, position)
            if state.network.is_joined:
                state.network.moved(session, is_sure=is_sure)
            if selections.crossing.count and session.moving:
                self._look_around(session)
        if state.watch is not None:
            state.watch.moved(session)
        if session.is_durable:
            self._keep(session, is_sure=is_sure)
        if state.log is not None:
            state.log.position(session.client_id, *position, state.now_ms)
        if self._is_public:
            self._show(session, position)

    def _keep(self, session: Session, *, is_sure: bool) -> None:
        """Journal a position: an acknowledged one at once, others at intervals.

        A position is outdated soon, so that an old one after a crash does little harm.
        """
        state = self._state
        age_ms = state.now_ms - session.position_kept_ms
        is_due = age_ms >= state.settings.position_journal_ms
        if is_sure or is_due or not session.position_kept_ms:
            session.position_kept_ms = state.now_ms
            state.journal.position(session)

    def _show(self, session: Session, position: Position) -> None:
        """Publish a position to `$position/<client>`, for permitted subscribers."""
        text = f"{POSITION_TOPIC}/{encode_level(session.client_id)}"
        if (
            len(text.encode()) > MAX_LENGTH
        ):  # percent encoding triples a name: no filter can be that long
            return
        topic = encode_string(text)
        route = self._state.router.find(topic)
        if not route.is_empty:
            lon, lat = map(number_text, position)
            payload = f'{{"lon":{lon},"lat":{lat}}}'.encode()
            message = Message(MessageHead(topic, len(payload), 0), payload)
            note_event(self._state, message, "")
            self._delivery.spread(route, [message], None, retain=False)

    # --- range entry ----------------------------------------------------------------------

    def _look_around(self, session: Session) -> None:
        """Deliver the retained messages that a client has come in range of, each once."""
        selections = self._state.selections
        assert selections is not None
        found: dict[str, tuple[PlacedRetained, list[SessionSubscription]]] = {}
        for one in session.moving.values():
            if one.crosses and not one.group:
                for kept in selections.crossing.entered(one):
                    found.setdefault(kept.topic, (kept, []))[1].append(one)
        for kept, subscriptions in found.values():
            self._deliver(session, kept, subscriptions)

    def _deliver(
        self, session: Session, kept: PlacedRetained, subscriptions: list[SessionSubscription]
    ) -> None:
        state, message = self._state, kept.message
        if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
            state.counters.dropped_expired += 1
            return
        state.counters.crossings += 1
        numbers = tuple(sorted(one.identifier for one in subscriptions if one.identifier))
        if numbers:
            message = message.variant(retain=True, identifiers=numbers)
        qos = min(message.head.qos, max(subscription.qos for subscription in subscriptions))
        self._delivery.enqueue_retained(session, message, qos)
        self._delivery.pump(session)
