"""One broker node: connections and bytes in, outboxes out.

Read next: `packets.py` (from bytes to the handlers of packets), `state.py` (what all parts share).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING

from nearcast.broker.access import Access, LoginVerdict, OpenAccess
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.publish import Award
from nearcast.broker.content.spaces import SpaceSettings, SpaceTable
from nearcast.broker.content.subscriptions import ContentSubscriptions
from nearcast.broker.content.top_k import Chosen
from nearcast.broker.counters import Counters
from nearcast.broker.event_log_hooks import note_subscription
from nearcast.broker.inspection import Inspection
from nearcast.broker.interface import BrokerInterface
from nearcast.broker.observer import observe_loss
from nearcast.broker.packets import PacketDispatch
from nearcast.broker.peers.publish_handler import PeerPublishHandler
from nearcast.broker.peers.sessions import PeerSessions
from nearcast.broker.persistence.journal import Journal, NoJournal
from nearcast.broker.persistence.moved_session import unpack_session
from nearcast.broker.persistence.replay import Replay, snapshot, tell_session
from nearcast.broker.persistence.unapplied_records import SetAside, will_aside
from nearcast.broker.publish.acks import Acks
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.routes import Router
from nearcast.broker.rechecks import Rechecks
from nearcast.broker.retained.expiry import RetainedExpiry
from nearcast.broker.retained.updates import event_of, keep_message, place_all_retained
from nearcast.broker.session.connect import ConnectHandler
from nearcast.broker.session.connection import Connection, Relay
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.settings import HELD_NOTE, BrokerSettings, RetainedSettings
from nearcast.broker.state import BrokerState, ClusterHooks
from nearcast.broker.subscribe.handler import SubscribeHandler
from nearcast.model import Event
from nearcast.mqtt import (
    Connect,
    MqttProtocolError,
    ReasonCode,
)
from nearcast.mqtt.wire import encode_string

if TYPE_CHECKING:
    from nearcast.retained import Policies


class Broker(BrokerInterface):
    """A broker without input or output.

    Contract:
        - `now_ms` never decreases from one call to the next;
        - after every call the server writes the outboxes of `take_dirty()`, in that order, but
          only once the bytes of `take_journal()` are safe;
        - the server calls `wake(now_ms)` at `wake_at()`, and `drained` after writing an outbox;
        - nothing that a client sends raises: the broker answers it or closes the connection;
        - an unexpected exception goes to `state.failures`, which raises it unless it has a
          listener; with one, the exception closes the connection that caused it and no other.

    Complexity: `receive` O(bytes + deliveries); see the collaborators for the rest.
    """

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        access: Access | None = None,
        rng: Random | None = None,
        with_journal: bool = False,
        spaces: Iterable[SpaceSettings] = (),
        retained: Iterable[RetainedSettings] = (),
    ) -> None:
        settings = settings or BrokerSettings()
        table = SpaceTable(spaces)
        held = tuple(retained)
        if all(one.mode == "immediate" for one in held):
            held = ()
        router = _make_router(settings, table, holds=bool(held))
        super().__init__(
            BrokerState(
                settings,
                access or OpenAccess(),
                rng or Random(0),
                Journal(keeps_ages=bool(table.all)) if with_journal else NoJournal(),
                router,
                selections=ContentSubscriptions(table, router.groups) if table.all else None,
            )
        )
        self._delivery = Delivery(self.state)
        RetainedExpiry(self.state)
        if held:
            self._hold_back(held)
        answers = Acks(self.state, self._delivery)
        self._positions = Positions(self.state, self._delivery)
        self._intake = PublishHandler(self.state, self._delivery, answers, self._positions)
        self._lifecycle = Lifecycle(self.state, self._delivery)
        self._lifecycle.publish_will = self._publish_will
        self._handshake = ConnectHandler(
            self.state, self._delivery, self._lifecycle, self._positions, self._intake.selective
        )
        self._subscribing = SubscribeHandler(self.state, self._delivery)
        self._rechecks = Rechecks(
            self.state, self._delivery, self._lifecycle, self._subscribing.remove
        )
        self._handshake.rechecks = self._rechecks
        self.slices = self.state.slices
        self.peering = PeerSessions(self.state, self._delivery, self._lifecycle)
        self._peer_intake = PeerPublishHandler(self.state, self._delivery, answers, self._positions)
        self._packets = PacketDispatch(
            self.state,
            (self._intake, self._peer_intake),
            answers,
            self._subscribing,
            self._handshake,
            self._lifecycle,
        )
        self.admission = self._packets.admission
        self.inspection = Inspection(self.state, self._intake)
        # Called for every read, so without a step in between: process the bytes of a connection
        # now, or queue them in the backlog.
        self.receive = self._packets.receive
        self.put_off = self._packets.put_off

    def _hold_back(self, settings: tuple[RetainedSettings, ...]) -> None:
        from nearcast.broker.retained.deferred import DeferredRetained
        from nearcast.broker.retained.deferred_routes import DeferredRouter

        router = self.state.router
        assert isinstance(router, DeferredRouter)
        self.state.deferral = DeferredRetained(self.state, self._delivery, router, settings)

    @property
    def counters(self) -> Counters:
        """Totals of packets, drops and other events."""
        return self.state.counters

    def join(self, network: ClusterHooks) -> None:
        """Join a cluster; call this before anything is restored and before any client connects."""
        self.state.network = network

    def arrive(self, message: Message, now_ms: int) -> None:
        """Deliver a message from another node to the clients of this node."""
        self.state.now_ms = now_ms
        route = self.state.router.arrivals.find(message.head.topic)
        self._peer_intake.publish(route, message, None, retain=False)

    def arrive_whole(self, message: Message, now_ms: int) -> None:
        """Deliver a message from another peer of an overlay to all clients here that want it.

        Places and share groups included: it comes only once, and names none of them.
        """
        self.state.now_ms = now_ms
        route = self.state.router.find(message.head.topic)
        self._peer_intake.publish(route, message, None, retain=False)

    def bring(self, message: Message, now_ms: int) -> None:
        """Publish a message of an overlay of peers, here and at other nodes, as a client would."""
        self.state.now_ms = now_ms
        route = self.state.router.find(message.head.topic)
        self._intake.publish(route, message, None, retain=False)

    def bids(self, message: Message, k: int, rank: str, publisher: str) -> list[Chosen]:
        """Return the `k` best subscriptions of this node for a message: one part of a top-k."""
        return self._intake.selective.selection.bids(message, k, rank, publisher)

    def award(self, message: Message, awards: Iterable[Award]) -> None:
        """Deliver a message to the subscriptions that were chosen among those of all nodes."""
        self._intake.selective.award(message, awards)

    def keep(
        self,
        message: Message,
        now_ms: int,
        missed: Callable[[Event | None], list[SessionSubscription]] = lambda _: [],
    ) -> None:
        """Store a message that was retained at another node; an empty payload deletes.

        `missed` returns the subscriptions that the message is sent to now, because the other node
        did not know of them when the message was published.
        """
        self.state.now_ms = now_ms
        self.state.deferral.kept_elsewhere(message)
        selections = self.state.selections
        event = None if selections is None else event_of(self.state, selections, message)
        version = keep_message(self.state, message, event)
        if message.payload:
            for one in missed(event):
                self._subscribing.bring(one, message.variant(retain=True), version)

    def load_policies(self, policies: Policies, now_ms: int) -> None:
        """Replace the policies of deferred retained delivery; no effect without such topics."""
        self.state.now_ms = now_ms
        self.state.deferral.load(policies)

    @property
    def kernel_parts(self) -> list[str]:
        """The parts of `nearcast.kernels` that this broker calls."""
        parts = [] if self.state.selections is None else ["matching"]
        return parts if self.state.deferral.deferred is None else [*parts, "retained"]

    def change_limits(self, settings: BrokerSettings) -> None:
        """Apply new limits; the ones sent to clients (packet size, windows) must not change."""
        self.state.settings = settings
        self._delivery.take_limits()

    def set_access(self, access: Access, now_ms: int) -> None:
        """Replace users and rules, and check in slices what was granted before."""
        self.state.now_ms = now_ms
        self._rechecks.begin(access)

    # --- calls of the server --------------------------------------------------------------

    def open(self, connection: Connection, now_ms: int, since_ms: int = 0) -> None:
        """Add a new connection; `since_ms` is when it was accepted, if that was earlier."""
        self.state.now_ms = connection.last_seen_ms = now_ms
        self.state.connections.add(connection)
        if len(self.state.connections) > self.state.settings.max_open_connections:
            self.state.counters.connects_refused += 1
            self.state.close(connection)
        else:
            self._lifecycle.expect_connect(connection, since_ms or now_ms)

    def serve_backlog(self, now_ms: int) -> Connection | None:
        """Give a slice to the oldest entry of the backlog; return it if it is a connection."""
        self.state.now_ms = now_ms
        return self._packets.backlog.serve()

    def lost(self, connection: Connection, now_ms: int) -> None:
        """Clean up after a connection that has closed, for whatever reason."""
        self.state.now_ms = now_ms
        self.state.connections.discard(connection)
        connection.is_closing = True
        connection.pending = []
        self.admission.release(connection)
        observe_loss(self.state.observer, connection)
        connection.task = None
        try:
            if connection.relay is not None:
                connection.relay.close()
                connection.relay = None
            self._lifecycle.detach(connection, with_will=True)
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self.state.failures.take("parting from a client", error)

    def authenticated(self, connection: Connection, verdict: LoginVerdict, now_ms: int) -> None:
        """Continue a CONNECT of `take_questions()` with the verdict on its login."""
        self.state.now_ms = now_ms
        if not connection.is_open or connection.is_closing or connection.connect is None:
            return
        self._packets.go_on(connection, lambda: self._handshake.decide(connection, verdict), now_ms)

    # --- session relay --------------------------------------------------------------------

    def found_home(self, connection: Connection, relay: Relay | None, now_ms: int) -> None:
        """Continue a CONNECT after the other nodes were asked for its session.

        Without a `relay` the session is here; with one the session is at another node, and all
        bytes of the client are forwarded to it.
        """
        self.state.now_ms = now_ms
        if not connection.is_open or connection.is_closing or connection.connect is None:
            if relay is not None:
                relay.close()
            return
        if relay is None:
            self._packets.go_on(
                connection, lambda: self._handshake.welcome_here(connection), now_ms
            )
            return
        connection.connect = None
        pending, connection.pending = connection.pending, [b""]
        self.admission.release(connection)
        connection.relay = relay
        if pending:
            relay.write(b"".join(pending))

    def refuse_other(self, connection: Connection, now_ms: int) -> None:
        """Refuse a client after a node said that the session is another user's."""
        self.state.now_ms = now_ms
        if connection.is_open and not connection.is_closing and connection.connect is not None:
            self._handshake.refuse_other(connection, connection.connect)

    def admit(self, connection: Connection, connect: Connect, now_ms: int) -> None:
        """Accept a client that another node relays to its session here."""
        self.state.now_ms = connection.last_seen_ms = now_ms
        self.state.connections.add(connection)
        try:
            self._handshake.admit(connection, connect)
        except MqttProtocolError as error:
            self._packets.refuse(connection, error)
        except Exception as mistake:  # noqa: BLE001 - of ours
            self._packets.fail(connection, "welcoming a client of another node", mistake)
        if connection.task is not None:
            connection.pending = [b""]
            self._packets.backlog.add(connection)

    def give_up(self, client_id: str, now_ms: int) -> None:
        """End a session for good: its client starts a new one at another node."""
        self.state.now_ms = now_ms
        self._handshake.give_up(client_id)

    # --- sessions that move -----------------------------------------------------------------

    def redirect(self, connection: Connection, address: str, text: str, now_ms: int) -> None:
        """Ask a client of MQTT 5 to use another server, and close its connection."""
        self.state.now_ms = now_ms
        reason = ReasonCode.USE_ANOTHER_SERVER
        self._lifecycle.disconnect(connection, reason, text, server_reference=address)

    def hand_over(self, client_id: str, now_ms: int) -> None:
        """End a session that another node has adopted: its will and its queue went there."""
        self.state.now_ms = now_ms
        session = self.state.sessions.get(client_id)
        if session is not None:
            session.will = None
            self._delivery.give_away(session)
            self._handshake.give_up(client_id)

    def adopt(
        self, data: bytes, now_ms: int, place: Callable[[Session, Callable[[], object]], None]
    ) -> Session | None:
        """Restore a session that another node has packed; return None if that is not possible.

        `place` gets the session, and a function that puts its subscriptions into effect.
        """
        state = self.state
        state.now_ms = now_ms
        found = unpack_session(data, state)
        if found is None:
            return None
        session, replay = found
        place(session, replay.finish)
        for one in session.subscriptions.values():
            if one.inside is not None and state.selections is not None:
                state.selections.crossing.entered(one)  # its old home sent what is in range
            note_subscription(state, one, one.qos, is_added=True)
        tell_session(session, state.journal, set())
        deque(self._rechecks.one(session, session.user_name), maxlen=0)  # rules of this node
        if session.is_over:
            return None
        self._lifecycle.restore(session, was_connected=False)
        return session

    def drained(self, connection: Connection, now_ms: int) -> None:
        """Send more to a client whose outbox was written; called after every write."""
        self.state.now_ms = now_ms
        session = connection.session
        if session is not None and session.has_more and session.link is connection:
            try:
                self._delivery.pump(session)
            except Exception as error:  # noqa: BLE001 - a mistake of ours
                self._packets.fail(connection, "sending what was queued", error)

    def publish(self, topic: str, payload: bytes, *, now_ms: int, retain: bool = False) -> None:
        """Publish a message of the broker itself at QoS 0."""
        self.state.now_ms = now_ms
        message = Message(MessageHead(encode_string(topic), len(payload), 0), payload)
        route = self.state.router.find(message.head.topic)
        self._intake.publish(route, message, None, retain=retain)

    def disconnect(
        self, connection: Connection, reason: ReasonCode, now_ms: int, text: str = ""
    ) -> None:
        """Disconnect a client, with a reason code and text."""
        self.state.now_ms = now_ms
        try:
            self._lifecycle.disconnect(connection, reason, text)
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._packets.fail(connection, "disconnecting a client", error)

    def wake_at(self) -> int | None:
        """Return when `wake` has to be called next, or None."""
        return self.state.timers.wake_at()

    def wake(self, now_ms: int) -> None:
        """Run the timers that are due: keep-alive, wills, expiry."""
        self.state.now_ms = now_ms
        while not self._run_timers(now_ms):
            pass

    def _run_timers(self, now_ms: int) -> bool:
        """Run the timers that are due, up to the first one that fails; return whether none did."""
        try:
            self.state.timers.run_due(now_ms, self.slices.is_spent)
        except Exception as error:  # noqa: BLE001 - that timer has had its turn; the others are still due
            self.state.failures.take("running a timer", error)
            return False
        return True

    def take_dirty(self) -> list[Connection]:
        """Return and clear the dirty connections (bytes to write, or to be closed), each once."""
        dirty, self.state.dirty = self.state.dirty, []
        return dirty

    def take_questions(self) -> list[Connection]:
        """Return and clear the connections whose CONNECT waits for a verdict on its login."""
        questions, self.state.questions = self.state.questions, []
        return questions

    # --- journal and restart --------------------------------------------------------------

    def take_journal(self) -> bytes:
        """Return the bytes that must be stored before the outboxes are written."""
        return self.state.journal.take()

    def restore(self, batches: Iterable[bytes], now_ms: int) -> list[SetAside]:
        """Restore the state that an earlier broker journaled; this broker must be new.

        Returns the records that could not be applied, in order; all others are applied.
        """
        state = self.state
        state.now_ms = now_ms
        replay = Replay(state)
        for batch in batches:
            replay.apply(batch)
        connected = {one.number for one in replay.finish()}
        state.aside += replay.aside
        if state.selections is not None:
            place_all_retained(state, state.selections)
            for one in state.selections.by_number.values():
                if one.inside is not None:  # it was sent what is in range before the restart
                    state.selections.crossing.entered(one)
        if state.journal.is_kept:
            keeps_ages = state.selections is not None
            state.journal = Journal(replay.next_message, keeps_ages=keeps_ages)
        state.network.restored()
        self._rechecks.at_once()  # before wills, which may reach any session
        self._lifecycle.is_restoring = True
        for session in list(state.sessions.values()):
            self._restore_session(session, was_connected=session.number in connected)
        self._lifecycle.is_restoring = False
        if any(key.startswith(HELD_NOTE) for key in state.notes):
            from nearcast.broker.retained.deferred import queue_held

            queue_held(state, self._delivery)
        aside, state.aside = state.aside, []
        state.counters.journal_records_set_aside += len(aside)
        return aside

    def _restore_session(self, session: Session, *, was_connected: bool) -> None:
        """Start the timers of a restored session; a will that cannot be published is set aside.

        One session never makes the start fail: any other exception is counted and logged.
        """
        failures = self.state.failures
        will = session.will
        try:
            self._lifecycle.restore(session, was_connected=was_connected)
        except Exception as problem:  # noqa: BLE001 - a start goes on without it
            if will is None:
                failures.take("restoring a session", problem)
                return
            self.state.aside.append(will_aside(session, will, problem))
            session.will = None
            with failures.kept("restoring a session"):
                self._lifecycle.restore(session, was_connected=was_connected)

    def snapshot(self) -> Iterator[bytes]:
        """Yield all state that must survive, as records for a new journal file."""
        return snapshot(self.state, self.state.journal)

    def _publish_will(self, session: Session, message: Message, retain: bool) -> None:
        topic = message.topic_text()
        state = self.state
        if not state.access.may_publish(session.user_name, session.client_id, topic):
            state.counters.dropped_forbidden += 1
            return
        route = state.router.find(message.head.topic)
        self._intake.publish(route, message, session, retain=retain)


def _make_router(settings: BrokerSettings, table: SpaceTable, *, holds: bool) -> Router:
    kind = Router
    if holds:
        from nearcast.broker.retained.deferred_routes import DeferredRouter

        kind = DeferredRouter
    return kind(
        max_levels=settings.max_topic_levels,
        cache_topics=settings.route_cache_topics,
        spaces=table,
        printable=settings.printable_topics,
    )
