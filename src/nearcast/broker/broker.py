"""One broker node: connections and bytes in, outboxes out.

Read next: `publish/handler.py` (PUBLISH), `session/connect.py` (CONNECT), `subscribe/handler.py`;
`state.py` has what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING

from nearcast.broker.access import Access, LoginVerdict, OpenAccess
from nearcast.broker.backlog import Backlog
from nearcast.broker.content.positions import Positions
from nearcast.broker.content.publish import Award
from nearcast.broker.content.spaces import SpaceSettings, SpaceTable
from nearcast.broker.content.subscriptions import ContentSubscriptions
from nearcast.broker.content.top_k import Chosen
from nearcast.broker.counters import Counters
from nearcast.broker.interface import BrokerInterface
from nearcast.broker.observer import observe_loss
from nearcast.broker.peers.publish_handler import PeerPublishHandler
from nearcast.broker.peers.sessions import PeerSessions
from nearcast.broker.persistence.journal import Journal
from nearcast.broker.persistence.replay import Replay, snapshot
from nearcast.broker.persistence.unapplied_records import SetAside, will_aside
from nearcast.broker.publish.acks import Acks
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.handler import PublishHandler
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.publish.routes import Router
from nearcast.broker.retained.updates import event_of, keep_message, place_all_retained
from nearcast.broker.session.admission import Admission, merge_pieces
from nearcast.broker.session.connect import ConnectHandler
from nearcast.broker.session.connection import Connection, Relay
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.settings import HELD_NOTE, BrokerSettings, RetainedSettings
from nearcast.broker.slices import never
from nearcast.broker.state import BrokerState, ClusterHooks
from nearcast.broker.subscribe.handler import SubscribeHandler
from nearcast.model import Event
from nearcast.mqtt import (
    Connect,
    Disconnect,
    MqttProtocolError,
    ProtocolVersion,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    decode_packet,
)
from nearcast.mqtt.framing import long_length, too_large
from nearcast.mqtt.reasons import CLIENT_DISCONNECT_REASONS
from nearcast.mqtt.wire import encode_string

if TYPE_CHECKING:
    from nearcast.retained import Policies

Handler = Callable[[Connection, bytes, int, int, int], int]


class Broker(BrokerInterface):
    """A broker without input or output.

    Contract:
        - `now_ms` never decreases from one call to the next;
        - after every call the server writes the outboxes of `take_grown()`, in that order, but
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
        super().__init__(
            BrokerState(
                settings,
                access or OpenAccess(),
                rng or Random(0),
                Journal(keeps_ages=bool(table.all)) if with_journal else None,
                _make_router(settings, table, holds=bool(held)),
                selections=ContentSubscriptions(table) if table.all else None,
            )
        )
        self._delivery = Delivery(self.state)
        if held:
            self._hold_back(held)
        self._answers = Acks(self.state, self._delivery)
        self._positions = Positions(self.state, self._delivery)
        self._intake = PublishHandler(self.state, self._delivery, self._answers, self._positions)
        self._lifecycle = Lifecycle(self.state, self._delivery)
        self._lifecycle.publish_will = self._publish_will
        self._handshake = ConnectHandler(
            self.state, self._delivery, self._lifecycle, self._positions, self._intake.selective
        )
        self._subscribing = SubscribeHandler(self.state, self._delivery)
        self._limit = settings.max_packet_bytes
        self.admission = Admission()
        self.slices = self.state.slices
        self._waiting = Backlog(self.state, self._take_in, self._refuse, self._fail)
        self.peering = PeerSessions(self.state, self._delivery, self._lifecycle)
        self._handlers = self._table(self._intake)
        self._peer_intake = PeerPublishHandler(
            self.state, self._delivery, self._answers, self._positions
        )
        self._peer_handlers = self._table(self._peer_intake)

    def _hold_back(self, settings: tuple[RetainedSettings, ...]) -> None:
        from nearcast.broker.retained.deferred import DeferredRetained, DeferredRouter

        router = self.state.router
        assert isinstance(router, DeferredRouter)
        self.state.holding = DeferredRetained(self.state, self._delivery, router, settings)

    @property
    def counters(self) -> Counters:
        """Totals of packets, drops and other events."""
        return self.state.counters

    def _table(self, intake: PublishHandler) -> dict[int, Handler]:
        """Return the handler for each first byte of a packet.

        A PUBLISH, an acknowledgement and PINGREQ have an entry; all others go to `_take_other`.
        """
        table: dict[int, Handler] = dict.fromkeys(range(0x30, 0x40), intake.publish_one)
        table |= {0x30: intake.lossy_run, 0x32: intake.sure_run, 0x34: intake.sure_run}
        if intake is self._intake:
            self._limit_publications(table)
        table |= dict.fromkeys((0x40, 0x50, 0x62, 0x70), self._answers.take)
        table[0xC0] = self._take_ping
        return table

    def _limit_publications(self, table: dict[int, Handler]) -> None:
        """Replace the handlers of PUBLISH packets that the settings forbid: QoS, RETAIN, size."""
        settings = self.state.settings
        largest, take_one = settings.max_message_bytes, self._intake.publish_one
        for first in range(0x30, 0x40):
            if not settings.retain_available and first & 1:
                table[first] = _refuses_retain
            elif settings.maximum_qos < first >> 1 & 3 < 3:
                table[first] = _refuses_qos
            elif largest and table[first] is not take_one:  # all packets of a run have one size
                table[first] = _by_size(largest, table[first], take_one)

    def join(self, network: ClusterHooks) -> None:
        """Join a cluster; call this before anything is restored and before any client connects."""
        self.state.network = network

    def arrive(self, message: Message, now_ms: int) -> None:
        """Deliver a message from another node to the clients of this node."""
        self.state.now_ms = now_ms
        route = self.state.router.arrivals.find(message.head.topic)
        self._peer_intake.publish(route, message, None, retain=False)

    def bids(self, message: Message, k: int, rank: str, publisher: str) -> list[Chosen]:
        """Return the `k` best subscriptions of this node for a message: one part of a top-k."""
        return self._intake.selective.bids(message, k, rank, publisher)

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
        if self.state.holding is not None:
            self.state.holding.kept_elsewhere(message)
        selections = self.state.selections
        event = None if selections is None else event_of(self.state, selections, message)
        version = keep_message(self.state, message, event)
        if message.payload:
            for one in missed(event):
                self._subscribing.bring(one, message.variant(retain=True), version)

    def load_policies(self, policies: Policies, now_ms: int) -> None:
        """Replace the policies of deferred retained delivery; no effect without such topics."""
        self.state.now_ms = now_ms
        if self.state.holding is not None:
            self.state.holding.load(policies)

    @property
    def kernel_parts(self) -> list[str]:
        """The parts of `nearcast.kernels` that this broker calls."""
        parts = [] if self.state.selections is None else ["matching"]
        return parts if self.state.holding is None else [*parts, "retained"]

    def change_limits(self, settings: BrokerSettings) -> None:
        """Apply new limits; the ones sent to clients (packet size, windows) must not change."""
        self.state.settings = settings
        self._delivery.take_limits()

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

    def receive(self, connection: Connection, data: bytes, now_ms: int) -> None:
        """Process bytes from a connection; packets may be split anywhere."""
        state = self.state
        state.now_ms = now_ms
        state.counters.bytes_received += len(data)
        if connection.is_closing:
            return
        if (
            connection.last_way is not None
            and not connection.pending
            and self._intake.same_again(connection, data)
        ):
            connection.last_seen_ms = now_ms
            return
        if connection.pending:
            if connection.relay is not None:
                connection.relay.write(data)
                return
            connection.pending.append(data)
            connection.pending_bytes += len(data)
            if connection.is_waiting:
                return
            if connection.pending_bytes < connection.wanted_bytes:
                merge_pieces(connection)
                if connection.session is None:
                    self._hold(connection)
                return
            data = b"".join(connection.pending)
            connection.pending = []
        self._take_in(connection, data)

    def _take_in(self, connection: Connection, data: bytes) -> None:
        """Process the whole packets among the bytes and keep the rest in `pending`."""
        try:
            consumed = self._take(connection, data)
        except MqttProtocolError as error:
            self._refuse(connection, error)
            return
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._fail(connection, "taking packets of a client", error)
            return
        if consumed:  # only whole packets count for the keep-alive
            connection.last_seen_ms = self.state.now_ms
        rest = 0 if connection.is_closing else len(data) - consumed
        if rest or (connection.is_waiting and not connection.is_closing):
            connection.pending = [data[consumed:]]
            connection.pending_bytes = rest
        if connection.session is None or connection.pool_bytes:
            connection.pending_bytes = rest
            self._hold(connection)

    def _hold(self, connection: Connection) -> None:
        """Account for the bytes that a client has sent before its login."""
        if connection.is_closing or connection.session is not None:
            self.admission.release(connection)
            return
        try:
            self.admission.hold(connection, self.state.settings)
        except MqttProtocolError as error:
            self._refuse(connection, error)

    def _fail(self, connection: Connection, doing: str, error: Exception) -> None:
        """Report an unexpected exception and end this connection only."""
        state = self.state
        state.failures.take(doing, error)
        connection.pending = []
        reason = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        try:
            if connection.is_peer or connection.is_closing:
                state.close(connection)
            elif connection.session is None:
                self._handshake.refuse(connection, reason)
            else:
                self._lifecycle.disconnect(connection, reason, "an internal error; it is logged")
        except Exception as further:  # noqa: BLE001 - a mistake of ours
            state.failures.take("answering an internal error", further)
            state.close(connection)

    def put_off(self, connection: Connection, data: bytes, now_ms: int) -> None:
        """Queue bytes in the backlog, to be processed in a later slice."""
        is_idle = connection.relay is None and connection.session is not None
        if connection.is_waiting or connection.is_closing or not is_idle:
            self.receive(connection, data, now_ms)
        else:
            self._waiting.put_off(connection, data)

    def serve_backlog(self, now_ms: int) -> Connection | None:
        """Give a slice to the oldest entry of the backlog; return it if it is a connection."""
        self.state.now_ms = now_ms
        return self._waiting.serve()

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
        self._go_on(connection, lambda: self._handshake.decide(connection, verdict), now_ms)

    def _go_on(self, connection: Connection, welcome: Callable[[], None], now_ms: int) -> None:
        """Answer a CONNECT that had to wait, then process what the client has sent since."""
        try:
            welcome()
        except MqttProtocolError as error:
            self._refuse(connection, error)
            return
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._fail(connection, "welcoming a client", error)
            return
        pending, connection.pending = connection.pending, []
        connection.wanted_bytes = 2
        self.admission.release(connection)
        if connection.task is not None:
            connection.pending = [b"", *pending]
            self._waiting.add(connection)
        elif pending:
            self.receive(connection, b"".join(pending), now_ms)

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
            self._go_on(connection, lambda: self._handshake.welcome_here(connection), now_ms)
            return
        connection.connect = None
        pending, connection.pending = connection.pending, [b""]
        self.admission.release(connection)
        connection.relay = relay
        if pending:
            relay.write(b"".join(pending))

    def admit(self, connection: Connection, connect: Connect, now_ms: int) -> None:
        """Accept a client that another node relays to its session here."""
        self.state.now_ms = connection.last_seen_ms = now_ms
        self.state.connections.add(connection)
        try:
            self._handshake.admit(connection, connect)
        except MqttProtocolError as error:
            self._refuse(connection, error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._fail(connection, "welcoming a client of another node", error)
        if connection.task is not None:
            connection.pending = [b""]
            self._waiting.add(connection)

    def give_up(self, client_id: str, now_ms: int) -> None:
        """End a session for good: its client starts a new one at another node."""
        self.state.now_ms = now_ms
        self._handshake.give_up(client_id)

    def drained(self, connection: Connection, now_ms: int) -> None:
        """Send more to a client whose outbox was written; called after every write."""
        self.state.now_ms = now_ms
        session = connection.session
        if session is not None and session.has_more and session.link is connection:
            try:
                self._delivery.pump(session)
            except Exception as error:  # noqa: BLE001 - a mistake of ours
                self._fail(connection, "sending what was queued", error)

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
            self._fail(connection, "disconnecting a client", error)

    def wake_at(self) -> int | None:
        """Return when `wake` has to be called next, or None."""
        return self.state.timers.wake_at()

    def wake(self, now_ms: int) -> None:
        """Run the timers that are due: keep-alive, wills, expiry."""
        self.state.now_ms = now_ms
        is_done = False
        while not is_done:
            try:
                self.state.timers.run_due(now_ms, self.slices.is_spent)
                is_done = True
            except Exception as error:  # noqa: BLE001 - that timer has had its turn; the others are still due
                self.state.failures.take("running a timer", error)

    def take_grown(self) -> list[Connection]:
        """Return and clear the dirty connections (bytes to write, or to be closed), each once."""
        grown, self.state.grown = self.state.grown, []
        return grown

    def take_questions(self) -> list[Connection]:
        """Return and clear the connections whose CONNECT waits for a verdict on its login."""
        questions, self.state.questions = self.state.questions, []
        return questions

    # --- journal and restart --------------------------------------------------------------

    def take_journal(self) -> bytes:
        """Return the bytes that must be stored before the outboxes are written."""
        return b"" if self.state.journal is None else self.state.journal.take()

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
        if state.journal is not None:
            keeps_ages = state.selections is not None
            state.journal = Journal(replay.next_message, keeps_ages=keeps_ages)
        if state.network is not None:
            state.network.restored()
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
        assert self.state.journal is not None
        return snapshot(self.state, self.state.journal)

    # --- packets --------------------------------------------------------------------------

    def _take(self, connection: Connection, data: bytes) -> int:
        """Process all whole packets; return the position behind the last one."""
        position, end, limit = 0, len(data), self._limit
        if connection.session is None and connection.connect is None:
            limit = min(limit, self.state.settings.max_connect_bytes)
        handlers = self._peer_handlers if connection.is_peer else self._handlers
        is_spent = never if connection.is_peer else self.slices.is_spent
        while end - position >= 2:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length > 127:
                length, body = long_length(data, position + 1, end)
                if body < 0:
                    connection.wanted_bytes = end - position + 1
                    return position
            stop = body + length
            if stop - position > limit:
                raise too_large(stop - position, limit)
            if stop > end:
                connection.wanted_bytes = stop - position
                return position
            handler = handlers.get(first)
            if handler is None or connection.session is None:
                if connection.connect is not None:
                    connection.wanted_bytes = 1 << 62
                    return position
                self._take_other(connection, first, data[body:stop])
                position, limit = stop, self._limit
            elif connection.is_peer:
                position = self._take_of_peer(handler, connection, data, position, body, stop)
            else:
                position = handler(connection, data, position, body, stop)
            if connection.is_closing:
                return end
            if connection.task is not None or (position < end and is_spent()):
                # Other connections are served before the rest.
                self._waiting.add(connection)
                return position
        connection.wanted_bytes = 2
        return position

    def _take_of_peer(
        self,
        handler: Handler,
        connection: Connection,
        data: bytes,
        position: int,
        body: int,
        stop: int,
    ) -> int:
        """Handle a packet of a peer; acknowledge one that fails, or the peer resends it forever."""
        try:
            return handler(connection, data, position, body, stop)
        except MqttProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self.state.failures.take("taking a packet of another node", error)
            qos = data[position] >> 1 & 3 if data[position] >> 4 == 3 else 0
            if qos:
                at = body + 2 + (data[body] << 8 | data[body + 1])
                self._answers.answer_all(connection, 0x30 + 0x10 * qos, [data[at : at + 2]], 0)
            return stop

    def _take_ping(
        self, connection: Connection, _data: bytes, _position: int, body: int, stop: int
    ) -> int:
        if stop != body:
            decode_packet(0xC0, b"x")
        self.state.counters.others_received += 1
        self.state.send(connection, b"\xd0\x00")  # [MQTT-3.12.4-1]
        return stop

    def _take_other(self, connection: Connection, first: int, body: bytes) -> None:
        self.state.counters.others_received += 1
        if connection.session is None:
            self._take_first(connection, first, body)
            return
        packet = decode_packet(first, body, ProtocolVersion(connection.version))
        if isinstance(packet, Subscribe):
            self._waiting.begin(connection, self._subscribing.subscribe(connection, packet))
        elif isinstance(packet, Unsubscribe):
            self._waiting.begin(connection, self._subscribing.unsubscribe(connection, packet))
        elif isinstance(packet, Disconnect):
            self._take_disconnect(connection, packet)
        else:
            raise MqttProtocolError(type(packet).__name__.upper(), where="packet from a client")

    def _take_first(self, connection: Connection, first: int, body: bytes) -> None:
        """Handle the first packet of a connection, which must be CONNECT [MQTT-3.1.0-1]."""
        if first != 0x10:  # closed without DISCONNECT, as before any CONNACK [MQTT-3.14.0-1]
            self.state.counters.protocol_errors += 1
            self.state.close(connection)
            return
        if body[:6] == b"\0\4MQTT" and len(body) > 6:
            connection.version = 5 if body[6] >= 5 else 4
        packet = decode_packet(first, body)
        assert isinstance(packet, Connect)
        connection.connect_bytes = len(body)
        self._handshake.begin(connection, packet)

    def _take_disconnect(self, connection: Connection, packet: Disconnect) -> None:
        session = connection.session
        assert session is not None
        if packet.reason not in CLIENT_DISCONNECT_REASONS:  # [MQTT-3.14.2-1]
            raise MqttProtocolError(f"reason code 0x{packet.reason:02X}", where="DISCONNECT")
        expiry_s = packet.properties.session_expiry_interval
        if expiry_s is not None:
            if expiry_s and not session.expiry_s:
                raise MqttProtocolError(
                    f"session expiry {expiry_s}", where="DISCONNECT", expected="0, as in CONNECT"
                )
            session.expiry_s = min(expiry_s, self.state.settings.session_expiry_s)
        with_will = packet.reason != ReasonCode.SUCCESS  # [MQTT-3.14.4-3]
        self.state.close(connection)
        if session.link is connection:
            self.state.observer.disconnected(connection, session, packet.reason, "")
        self._lifecycle.detach(connection, with_will=with_will)

    def _refuse(self, connection: Connection, error: MqttProtocolError) -> None:
        """Answer a protocol error with CONNACK or DISCONNECT, and close [MQTT-4.13.1-1]."""
        self.state.counters.protocol_errors += 1
        connection.pending = []
        if connection.is_peer:
            self.state.close(connection)
        elif connection.session is None:
            self._handshake.refuse(connection, error.reason, str(error))
        else:
            self._lifecycle.disconnect(connection, error.reason, str(error))

    def _publish_will(self, session: Session, message: Message, retain: bool) -> None:
        topic = message.topic_text()
        state = self.state
        if not state.access.may_publish(session.user_name, session.client_id, topic):
            state.counters.dropped_forbidden += 1
            return
        route = state.router.find(message.head.topic)
        self._intake.publish(route, message, session, retain=retain)


def _by_size(largest: int, take_run: Handler, take_one: Handler) -> Handler:
    """Return a handler that processes packets in runs only where no payload can be too large."""

    def take(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
        handler = take_one if stop - position > largest else take_run
        return handler(connection, data, position, body, stop)

    return take


def _refuses_retain(*_packet: object) -> int:
    raise MqttProtocolError("RETAIN", reason=ReasonCode.RETAIN_NOT_SUPPORTED, where="PUBLISH")


def _refuses_qos(_link: Connection, data: bytes, position: int, _body: int, _stop: int) -> int:
    raise MqttProtocolError(
        f"QoS {data[position] >> 1 & 3}", reason=ReasonCode.QOS_NOT_SUPPORTED, where="PUBLISH"
    )


def _make_router(settings: BrokerSettings, table: SpaceTable, *, holds: bool) -> Router:
    kind = Router
    if holds:
        from nearcast.broker.retained.deferred import DeferredRouter

        kind = DeferredRouter
    return kind(
        max_levels=settings.max_topic_levels,
        cache_topics=settings.route_cache_topics,
        spaces=table,
        printable=settings.printable_topics,
    )
