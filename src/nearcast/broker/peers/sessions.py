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
from nearcast.broker.event_log_hooks import CHOSEN, aside, note_event
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.retained.updates import event_of
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import PEER_PREFIX, Session, SessionSubscription
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


class PeerSessions:
    """The sessions of peers.

    A session's `user_name` has two generations, "ours/theirs": ours identifies this session's state
    at this node, theirs the state of the peer's session for this node. A changed one says that the
    state was lost.
    """

    def __init__(self, state: BrokerState, delivery: Delivery, lifecycle: Lifecycle) -> None:
        self._state = state
        self._delivery = delivery
        self._lifecycle = lifecycle

    def session(self, name: str) -> Session:
        """Return the session of a peer; a new one gets a random generation."""
        state = self._state
        known = state.sessions.get(PEER_PREFIX + name)
        if known is not None:
            return known
        session = Session(PEER_PREFIX + name, state.next_session)
        state.next_session += 1
        state.sessions[session.client_id] = session
        session.is_peer = session.is_durable = True
        session.version = 5
        session.expiry_s = _FOREVER_S
        session.window = state.settings.receive_maximum
        session.user_name = f"{state.rng.getrandbits(64):016x}/"
        self._remember(session)
        return session

    def generation(self, name: str) -> str:
        """Return the generation of this node's session for a peer."""
        return self.generation_of(self.session(name))

    @staticmethod
    def generation_of(session: Session) -> str:
        """Return this node's generation of a peer session."""
        return (session.user_name or "/").partition("/")[0]

    def remembers(self, name: str, generation: str) -> bool:
        """Return whether the peer's generation is the one of last time: it has kept its state."""
        return (self.session(name).user_name or "/").partition("/")[2] == generation

    def attach(
        self, name: str, generation: str, now_ms: int, *, takes_older: bool = False
    ) -> Connection:
        """Connect a peer and send what is queued for it.

        `generation` identifies the peer's session for this node: if it differs from last time, the
        peer has lost the QoS 2 identifiers that it had in use.
        """
        state, session = self._state, self.session(name)
        state.now_ms = now_ms
        connection = Connection(address=name, listener="network")
        connection.is_peer = True
        connection.takes_older = takes_older
        connection.session = session
        connection.version = 5
        connection.last_seen_ms = now_ms
        mine, _, theirs = (session.user_name or "/").partition("/")
        if theirs != generation:
            self._forget_incoming(session)
            session.user_name = f"{mine}/{generation}"
            self._remember(session)
        session.link = connection
        session.window = state.settings.receive_maximum
        state.connections.add(connection)
        if state.log is not None:
            state.log.present(session.client_id, now_ms, is_there=True)
        state.router.forget_session(session)
        self._delivery.resume(session)
        return connection

    def older(self, connection: Connection) -> Connection:
        """Return a second connection for the peer's MQTT 3.1.1 packets; nothing is sent to it."""
        twin = Connection(address=connection.address, listener=connection.listener)
        twin.is_peer = True
        twin.session = connection.session
        twin.version = 4
        return twin

    def detach(self, connection: Connection, now_ms: int) -> None:
        """Disconnect a peer: QoS 1 and 2 messages are queued for it."""
        self._state.now_ms = now_ms
        connection.is_open = False
        connection.is_closing = True
        self._state.connections.discard(connection)
        session = connection.session
        if session is not None and session.link is connection:
            session.link = None
            if self._state.log is not None:
                self._state.log.present(session.client_id, now_ms, is_there=False)
            self._state.router.forget_session(session)

    def forget(self, name: str, now_ms: int) -> None:
        """End the session of a node that has left for good.

        QoS 2 deliveries that it had begun are kept: should it come back with its state, it
        continues them.
        """
        self._state.now_ms = now_ms
        session = self._state.sessions.get(PEER_PREFIX + name)
        if session is None:
            return
        begun = sorted(session.incoming)
        theirs = (session.user_name or "/").partition("/")[2]
        self._lifecycle.end(session)
        if begun:
            self._go_on_with(self.session(name), begun, theirs)

    def _go_on_with(self, session: Session, begun: list[int], theirs: str) -> None:
        """Restore the begun QoS 2 deliveries of a peer in its new session."""
        session.user_name = f"{self.generation_of(session)}/{theirs}"
        session.incoming.update(begun)
        self._remember(session)
        if self._state.journal is not None:
            for number in begun:
                self._state.journal.incoming(session.number, number)

    def wants(self, name: str, added: Iterable[tuple[str, int]], removed: Iterable[str]) -> None:
        """Change a peer's subscriptions: filters, each with the number of its share group.

        A filter may have conditions. Raises PeerProtocolError if they do not fit a space here.
        """
        session = self.session(name)
        wishes = [self._wish(session, text, number) for text, number in added]
        for text in removed:
            subscription = session.subscriptions.get(text)
            if subscription is not None:
                if self._state.journal is not None:  # first: it may raise
                    self._state.journal.unsubscribed(session.number, text)
                del session.subscriptions[text]
                self._state.remove_subscription(subscription)
                self._note_wish(subscription, is_added=False)
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
            one
            for one in subscriptions
            if one.session not in plain
            and not _has_anyway(one.session, event)
            and one.selection is not None
            and topic_matches(one.topic_filter, event.topic)
            and one.selection.covers(event, place)
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
            b"\x26" + encode_string(AWARD) + encode_string(_award_text(*one)) for one in awards
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
        self._note_wish(subscription, is_added=True)

    def _note_wish(self, one: SessionSubscription, *, is_added: bool) -> None:
        state = self._state
        if state.log is not None:
            name = one.session.client_id
            state.log.subscription(state.now_ms, name, one.text, one.qos, is_added=is_added)

    def _forget_incoming(self, session: Session) -> None:
        journal = self._state.journal
        for number in session.incoming:
            if journal is not None:
                journal.released(session.number, number)
        session.incoming.clear()

    def _remember(self, session: Session) -> None:
        if self._state.journal is not None:
            self._state.journal.session(session)


def _has_anyway(session: Session, event: Event) -> bool:
    """Return whether a subscription without a place matches the event; O(its subscriptions)."""
    return any(
        one.selection is not None
        and not (one.has_place or one.group)
        and topic_matches(one.topic_filter, event.topic)
        and _covers(one.selection, event)
        for one in session.subscriptions.values()
    )


def _covers(selection: Selection, event: Event) -> bool:
    try:
        return selection.covers(event)
    except MisuseError:  # its conditions are about another space
        return False


def _award_text(number: int, place: int, distance_m: float | None) -> str:
    return f"{number} {place} {'' if distance_m is None else repr(distance_m)}"
