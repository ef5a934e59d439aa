"""A real broker and its cluster layer as an actor, with simulated MQTT clients.

The journal of the broker, which a server has on disk, survives a crash. Clients see a crash as a
lost connection, and reconnect when a test calls `admit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from nearcast.broker import Broker, BrokerSettings, Connection, SpaceSettings
from nearcast.broker.settings import RetainedSettings
from nearcast.cluster import Cluster, LinkTiming, NamedPlan
from nearcast.locality import Timing
from nearcast.locality.layout.adapting import AdaptRules
from nearcast.locality.registration.redirect_policy import RedirectRules
from nearcast.mqtt import (
    Connack,
    Connect,
    Conversation,
    Disconnect,
    FilterRequest,
    Packet,
    Properties,
    ProtocolVersion,
    Publish,
    Suback,
)
from nearcast.simulator.world import Instant, Send

SESSION_S = 100_000


@dataclass(frozen=True, slots=True)
class FromNode:
    """A frame between nodes."""

    sender: str
    data: bytes


class SimulatedClient:
    """An MQTT client with a persistent session.

    It keeps all messages that it received, in order.
    """

    def __init__(
        self,
        name: str,
        expiry_s: int = SESSION_S,
        *,
        is_clean: bool = False,
        version: ProtocolVersion = ProtocolVersion.V5,
        user_name: str | None = None,
    ) -> None:
        self.name = name
        self._user_name = user_name
        self._version = version
        self._is_clean = is_clean
        self.received: list[Publish] = []
        self.subacks: list[Suback] = []
        self.referred_to: str | None = None  # the Server Reference of the last DISCONNECT
        self._expiry_s = expiry_s
        self._talk: Conversation | None = None  # of the current connection
        self._earlier: Conversation | None = None  # of the lost one, with unacknowledged packets

    @property
    def is_connected(self) -> bool:
        """Whether the broker has accepted the connection."""
        return self._talk is not None and self._talk.connack is not None

    @property
    def unsettled(self) -> int:
        """The number of its publications that the broker has not fully acknowledged."""
        talk = self._talk or self._earlier
        return 0 if talk is None else len(talk.unsettled)

    def connect(self) -> None:
        """Start a connection, resuming the session of an earlier one."""
        properties = Properties()
        if self._version is ProtocolVersion.V5:
            properties = Properties(session_expiry_interval=self._expiry_s)
        connect = Connect(
            self.name,
            self._version,
            self._is_clean,
            user_name=self._user_name,
            properties=properties,
        )
        self._talk = Conversation(connect, self._earlier)

    def lose(self) -> None:
        """Lose the connection; the session continues."""
        if self._talk is not None and self._talk.connack is not None:
            self._earlier = self._talk
        self._talk = None

    def publish(self, message: Publish) -> None:
        """Publish a message; the client must be connected."""
        assert self._talk is not None
        self._talk.publish(message)

    def subscribe(self, topic_filter: str, qos: int = 2) -> None:
        """Subscribe; the client must be connected."""
        self.ask(FilterRequest(topic_filter, qos))

    def ask(self, request: FilterRequest) -> None:
        """Subscribe with options; the client must be connected."""
        assert self._talk is not None
        self._talk.subscribe(request)

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe; the client must be connected."""
        assert self._talk is not None
        self._talk.unsubscribe(topic_filter)

    def take(self) -> bytes:
        """Return the bytes that the client sends."""
        return b"" if self._talk is None else self._talk.take()

    def receive(self, data: bytes) -> None:
        """Handle bytes from the broker."""
        if self._talk is not None:
            for packet in self._talk.receive(data):
                self._hear(packet)

    def _hear(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.received.append(packet)
        elif isinstance(packet, Suback):
            self.subacks.append(packet)
        elif isinstance(packet, Disconnect):
            self.referred_to = packet.properties.server_reference
        elif isinstance(packet, Connack):
            self._earlier = None


class SimulatedNode:
    """One node with its clients; an `Actor` of the world."""

    def __init__(
        self,
        name: str,
        seed: int,
        *,
        settings: BrokerSettings | None = None,
        spaces: Sequence[SpaceSettings] = (),
        retained: Sequence[RetainedSettings] = (),
        patience: Timing | None = None,
        link_timing: LinkTiming | None = None,
        redirect: RedirectRules | None = None,
        adapt: AdaptRules | None = None,
    ) -> None:
        self.name = name
        self._redirect = redirect
        self._adapt = adapt
        self._seed = seed
        self._settings = settings
        self._spaces = spaces
        self._retained = retained
        self._patience = patience
        self._link_timing = link_timing
        self._plan: NamedPlan | None = None
        self._starts = 0
        self._others: dict[str, None] = {}  # names of peers, in order
        self._disk: list[bytes] = []  # the journal: survives a crash
        self._clients: dict[Connection, SimulatedClient] = {}
        self._start(0)

    def _start(self, now: Instant) -> None:
        self._starts += 1
        random = Random(f"{self._seed}/{self.name}/{self._starts}")
        self.node = Broker(
            self._settings,
            rng=random,
            with_journal=True,
            spaces=self._spaces,
            retained=self._retained,
        )
        self.mesh = Cluster(
            self.name,
            self.node,
            random=random,
            timing=self._link_timing,
            patience=self._patience,
            began_ms=now,
            redirect=self._redirect,
            adapt=self._adapt,
        )
        if self._redirect is not None:
            self.mesh.announce(f"{self.name}:1883")
        self.node.restore(self._disk, now)
        self.node.take_journal()
        self._disk = list(self.node.snapshot())
        for name in self._others:
            self.mesh.meet(name, now)
        if self._plan is not None:
            self.mesh.use_plan(self._plan, now)  # no effect if it is already in use

    def restart(self, now: Instant) -> list[Send]:
        """Start again after a crash with the state on disk."""
        for client in self._clients.values():
            client.lose()
        self._clients = {}
        self._start(now)
        return self.turn(now)

    def meet(self, names: list[str], now: Instant) -> list[Send]:
        """Introduce other nodes as peers."""
        self._others.update(dict.fromkeys(names))
        for name in names:
            self.mesh.meet(name, now)
        return self.turn(now)

    def part(self, name: str, now: Instant) -> list[Send]:
        """Remove a peer that has left permanently."""
        self._others.pop(name, None)
        self.mesh.part(name, now)
        return self.turn(now)

    def leave(self, now: Instant) -> list[Send]:
        """Begin to leave the cluster permanently."""
        self.mesh.leave(now)
        return self.turn(now)

    def use_plan(self, plan: NamedPlan, now: Instant) -> list[Send]:
        """Apply a plan; it is on disk from then on."""
        self._plan = plan
        self.mesh.use_plan(plan, now)
        return self.turn(now)

    def receive(self, message: FromNode, now: Instant) -> list[Send]:
        """Handle a frame from a peer."""
        self.mesh.receive(message.sender, message.data, now)
        return self.turn(now)

    def advance(self, now: Instant) -> list[Send]:
        """Do everything that is due by `now`."""
        self.node.wake(now)
        self.mesh.advance(now)
        return self.turn(now)

    def wake_at(self) -> Instant | None:
        """Return when something is due next; None if nothing is."""
        times = (self.node.wake_at(), self.mesh.wake_at())
        return min((at for at in times if at is not None), default=None)

    # --- clients ----------------------------------------------------------------------------

    def admit(self, client: SimulatedClient, now: Instant) -> list[Send]:
        """Connect a client."""
        client.connect()
        connection = Connection(address=client.name)
        self._clients[connection] = client
        self.node.open(connection, now)
        return self.turn(now)

    def drop(self, client: SimulatedClient, now: Instant) -> list[Send]:
        """Break a client's connection."""
        for connection, known in list(self._clients.items()):
            if known is client:
                del self._clients[connection]
                self.node.lost(connection, now)
        client.lose()
        return self.turn(now)

    def turn(self, now: Instant) -> list[Send]:
        """Run event-loop batches until no client or connection has output.

        Returns the frames to peers. Each batch writes the journal before the outboxes.
        """
        while True:
            for connection, client in list(self._clients.items()):
                data = client.take()
                if data:
                    self.node.receive(connection, data, now)
            self.mesh.settle()
            self._disk.append(self.node.take_journal())
            dirty = self.node.take_dirty()
            if not dirty:
                break
            for connection in dirty:
                self._write(connection, now)
        return [Send(name, FromNode(self.name, data)) for name, data in self.mesh.take_frames()]

    def _write(self, connection: Connection, now: Instant) -> None:
        connection.is_dirty = False
        chunks, connection.outbox, connection.outbox_bytes = connection.outbox, [], 0
        if connection.transport is not None:
            connection.transport.write(chunks)
            if connection.is_closing:
                connection.transport.finish()
        else:
            client = self._clients.get(connection)
            if client is not None:
                client.receive(b"".join(chunks))
                if connection.is_closing:
                    del self._clients[connection]
                    self.node.lost(connection, now)
                    client.lose()
        if connection.is_open and not connection.is_closing:
            self.node.drained(connection, now)
