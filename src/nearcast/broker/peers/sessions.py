"""Peers as a broker sees them: sessions that never expire, subscribed to what is wanted there.

Two nodes exchange MQTT 5 packets: PUBLISH and its acknowledgements, both ways over one connection;
QoS 0 publications of MQTT 3.1.1 travel unchanged. So messages between nodes are batched, queued,
journaled, resent and deduplicated exactly as they are for clients. There is no CONNECT and no
SUBSCRIBE: `nearcast.cluster` attaches and detaches a peer and sets its subscriptions.

A message from a peer goes to this node's own clients only; it is never forwarded.

Read next: `publish_handler.py`, then `nearcast.cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.broker.content.publish import Award
from nearcast.broker.event_log_hooks import CHOSEN, aside, note_event, note_subscription
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.retained.updates import event_of
from nearcast.broker.session.connection import Connection, PeerConnection
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import PEER_PREFIX, PeerSession, Session, SessionSubscription
from nearcast.broker.state import BrokerState
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, MisuseError, read_subscription, split_prefixes
from nearcast.model import Subscription as Selection
from nearcast.model.errors import PeerProtocolError
from nearcast.model.requests import SELECTING, decoded
from nearcast.mqtt.topics import split_shared
from nearcast.mqtt.wire import encode_string

AWARD = "$award"
"""A user property between nodes: the chosen subscription of a top-k, its place and distance."""
Place = tuple[float, float]
_FOREVER_S = 0xFFFF_FFFF
BRIDGE_WINDOW = 1_000
"""How many messages at QoS 1 an overlay may have that it has not confirmed."""


class PeerSessions:
    """The sessions of peers, by the names of their nodes."""

    def __init__(self, state: BrokerState, delivery: Delivery, lifecycle: Lifecycle) -> None:
        self._state = state
        self._delivery = delivery
        self._lifecycle = lifecycle

    def session(self, name: str) -> PeerSession:
        """Return the session of a peer; a new one gets a random generation."""
        state = self._state
        known = self._known(name)
        if known is not None:
            return known
        session = PeerSession(PEER_PREFIX + name, state.next_session)
        state.next_session += 1
        state.sessions[session.client_id] = session
        session.is_durable = state.journal.is_kept
        session.version = 5
        session.expiry_s = _FOREVER_S
        session.window = state.settings.receive_maximum
        session.our_generation = f"{state.rng.getrandbits(64):016x}"
        state.journal.session(session)
        return session

    def _known(self, name: str) -> PeerSession | None:
        session = self._state.sessions.get(PEER_PREFIX + name)
        assert session is None or isinstance(session, PeerSession)
        return session

    def generation(self, name: str) -> str:
        """Return the generation of this node's session for a peer."""
        return self.session(name).our_generation

    def remembers(self, name: str, generation: str) -> bool:
        """Return whether the peer's generation is the one of last time: it has kept its state."""
        return self.session(name).peer_generation == generation

    def has_unsettled(self, name: str) -> bool:
        """Return whether a peer has yet to acknowledge messages of its session."""
        session = self._known(name)
        return session is not None and bool(session.queue or session.in_flight or session.released)

    def attach(
        self, name: str, generation: str, now_ms: int, *, takes_older: bool = False
    ) -> PeerConnection:
        """Connect a peer and send what is queued for it.

        `generation` identifies the peer's session for this node: if it differs from last time, the
        peer has lost the QoS 2 identifiers that it had in use.
        """
        state, session = self._state, self.session(name)
        state.now_ms = now_ms
        connection = PeerConnection(session, "network")
        connection.takes_older = takes_older
        connection.last_seen_ms = now_ms
        if session.peer_generation != generation:
            self._forget_incoming(session)
            session.peer_generation = generation
            self._state.journal.session(session)
        session.link = connection
        session.window = state.settings.receive_maximum
        state.connections.add(connection)
        state.presence_changed(session)
        state.router.forget_session(session)
        self._delivery.resume(session)
        return connection

    def older(self, name: str) -> PeerConnection:
        """Return a second connection for the peer's MQTT 3.1.1 packets; nothing is sent to it."""
        return PeerConnection(self.session(name), "network", version=4)

    def detach(self, connection: PeerConnection, now_ms: int) -> None:
        """Disconnect a peer: QoS 1 and 2 messages are queued for it."""
        self._state.now_ms = now_ms
        connection.is_open = False
        connection.is_closing = True
        self._state.connections.discard(connection)
        session = connection.session
        if session is not None and session.link is connection:
            session.link = None
            self._state.presence_changed(session)
            self._state.router.forget_session(session)

    def forget(self, name: str, now_ms: int) -> None:
        """End the session of a node that has left for good.

        QoS 2 deliveries that it had begun are kept: should it come back with its state, it
        continues them.
        """
        self._state.now_ms = now_ms
        session = self._known(name)
        if session is None:
            return
        begun = sorted(session.incoming)
        self._lifecycle.end(session)
        if begun:
            self._go_on_with(self.session(name), begun, session.peer_generation)

    def _go_on_with(self, session: PeerSession, begun: list[int], generation: str) -> None:
        """Restore the begun QoS 2 deliveries of a peer in its new session."""
        session.peer_generation = generation
        self._state.journal.session(session)
        if session.is_durable:
            self._state.journal.incoming(session.number, begun)
        session.incoming.update(begun)

    def wants(self, name: str, added: Iterable[tuple[str, int]], removed: Iterable[str]) -> None:
        """Change a peer's subscriptions: filters, each with the number of its share group.

        A filter may have conditions. Raises PeerProtocolError if they do not fit a space here.
        """
        session = self.session(name)
        wishes = [self._wish(session, text, number) for text, number in added]
        self._change(session, wishes, removed)

    def _change(
        self, session: Session, wishes: list[SessionSubscription], removed: Iterable[str]
    ) -> None:
        for text in removed:
            subscription = session.subscriptions.get(text)
            if subscription is not None:
                self._state.journal.unsubscribed(session.number, text)  # first: it may raise
                del session.subscriptions[text]
                self._state.remove_subscription(subscription)
                note_subscription(self._state, subscription, subscription.qos, is_added=False)
        for wish in wishes:
            self._want(session, wish)

    def has_ready(self, name: str, ready: Iterable[tuple[str, int]]) -> None:
        """Set how many members of share groups are connected at a peer."""
        held = self.session(name).subscriptions
        for text, count in ready:
            if text in held:
                held[text].members = count

    def wants_only(self, name: str, wanted: Iterable[tuple[str, int]]) -> None:
        """Replace all subscriptions of a peer."""
        entries = dict(wanted)
        held = self.session(name).subscriptions
        removed = [text for text in held if text not in entries]
        changed = [
            (text, number)
            for text, number in entries.items()
            if text not in held or held[text].identifier != number
        ]
        self.wants(name, changed, removed)

    # --- a bridge to an overlay of peers ------------------------------------------------------

    def attach_bridge(self, client_id: str, transport: object, now_ms: int) -> Connection:
        """Connect the session of a bridge and send what is queued for it; it is made if need be.

        It is the session of a client that needs no login: other nodes are told what it wants.
        """
        state = self._state
        state.now_ms = now_ms
        session = state.sessions.get(client_id)
        if session is None:
            session = Session(client_id, state.next_session)
            state.next_session += 1
            state.sessions[client_id] = session
            session.is_durable = state.journal.is_kept
            session.expiry_s = _FOREVER_S
            state.journal.session(session)
        connection = Connection(client_id, "bridge", transport=transport, version=5)
        connection.session, connection.last_seen_ms = session, now_ms
        session.version, session.window, session.link = 5, BRIDGE_WINDOW, connection
        self._lifecycle.recall(session)
        state.connections.add(connection)
        state.connected += 1
        state.presence_changed(session)
        state.router.forget_session(session)
        self._delivery.resume(session)
        return connection

    def bridge_wants(self, session: Session, wanted: Iterable[str], now_ms: int) -> None:
        """Replace all subscriptions of a bridge: filters with conditions, at QoS 1."""
        self._state.now_ms = now_ms
        texts = dict.fromkeys(wanted)
        wishes = [
            self._wish(session, text, 0) for text in texts if text not in session.subscriptions
        ]
        for wish in wishes:
            wish.qos = 1
        self._change(session, wishes, [one for one in session.subscriptions if one not in texts])

    # --- messages matched at other nodes ------------------------------------------------------

    def wanted(
        self, message: Message, subscriptions: Iterable[SessionSubscription], place: Place | None
    ) -> list[SessionSubscription]:
        """Return the content subscriptions of one client that match a message of another node.

        `place` is the client's position when the message was published. A client that gets the
        message through a subscription without a place as well gets it through that one only.
        """
        state = self._state
        selections = state.selections
        event = None if selections is None else event_of(state, selections, message)
        if event is None:
            return []
        plain = state.router.arrivals.find(message.head.topic).by_session
        return [
            subscription
            for subscription in subscriptions
            if subscription.session not in plain
            and not _has_anyway(subscription.session, event)
            and subscription.selection is not None
            and topic_matches(subscription.topic_filter, event.topic)
            and subscription.selection.covers(event, place)
        ]

    def deliver(
        self,
        session: Session,
        subscriptions: list[SessionSubscription],
        message: Message,
        now_ms: int,
    ) -> None:
        """Deliver a message of another node to one client, with its subscriptions' options."""
        self._state.now_ms = now_ms
        note_event(self._state, message, "", CHOSEN)
        self._delivery.deliver_as(session, subscriptions, [message], {}, retain=False)

    def send_award(self, name: str, message: Message, awards: Iterable[Award]) -> None:
        """Send a message to a peer for subscriptions there that a top-k has chosen."""
        extra = b"".join(
            b"\x26" + encode_string(AWARD) + encode_string(_award_text(*award)) for award in awards
        )
        self.send(name, [message.variant(retain=False, extra=extra)])

    def send(self, name: str, messages: list[Message]) -> None:
        """Send messages of one head to a peer, whatever its subscriptions."""
        session, qos = self.session(name), messages[0].head.qos
        with aside(self._state):
            if qos:
                self._delivery.hand_over(session, messages, qos)
                return
            for message in messages:
                self._delivery.send_to_each([session], message)

    def _wish(self, session: Session, text: str, number: int) -> SessionSubscription:
        """Return a peer's subscription, its conditions parsed and checked against the spaces."""
        shared = split_shared(text)
        if self._state.selections is None:
            return SessionSubscription(
                session, text, shared.group, shared.topic_filter, 2, identifier=number
            )
        try:
            prefixes, bare = split_prefixes(shared.topic_filter, SELECTING)
            wish = SessionSubscription(
                session,
                text,
                shared.group,
                bare,
                2,
                retain_as_published=bool(prefixes),  # subscribers at the peer may want the flag
                identifier=number,
            )
            if prefixes:
                wish.select(read_subscription(bare, decoded(prefixes)).subscription)
                self._state.selections.check(wish)
        except MisuseError as problem:
            raise PeerProtocolError(str(problem), where=f"what {session.client_id} wants") from None
        return wish

    def _want(self, session: Session, subscription: SessionSubscription) -> None:
        text = subscription.text
        self._state.record_subscription(subscription, session.subscriptions.get(text))
        session.subscriptions[text] = subscription
        note_subscription(self._state, subscription, subscription.qos, is_added=True)

    def _forget_incoming(self, session: Session) -> None:
        if session.is_durable:
            self._state.journal.released(session.number, session.incoming)
        session.incoming.clear()


def _has_anyway(session: Session, event: Event) -> bool:
    """Return whether a subscription without a place matches the event; O(its subscriptions)."""
    return any(
        subscription.selection is not None
        and not (subscription.has_place or subscription.group)
        and topic_matches(subscription.topic_filter, event.topic)
        and _covers(subscription.selection, event)
        for subscription in session.subscriptions.values()
    )


def _covers(selection: Selection, event: Event) -> bool:
    try:
        return selection.covers(event)
    except MisuseError:  # its conditions are about another space
        return False


def _award_text(number: int, place: int, distance_m: float | None) -> str:
    return f"{number} {place} {'' if distance_m is None else repr(distance_m)}"
