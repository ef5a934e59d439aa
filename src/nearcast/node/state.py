"""What the parts of a node share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from nearcast.model import Event
from nearcast.mqtt import Connect
from nearcast.node.access import Access
from nearcast.node.connection import Connection
from nearcast.node.counters import Counters
from nearcast.node.failures import Failures
from nearcast.node.journal import Journal
from nearcast.node.message import Message
from nearcast.node.observing import ClientObserver
from nearcast.node.retained import RetainedStore
from nearcast.node.routes import Route, Router
from nearcast.node.session import Session, Subscription
from nearcast.node.set_aside import SetAside, note_aside
from nearcast.node.settings import NodeSettings
from nearcast.node.slices import Slices, Work
from nearcast.node.timers import Timers

if TYPE_CHECKING:  # PyArrow stays out of a broker that keeps no event log, Numba without spaces
    from nearcast.eventlog.records import Recorder
    from nearcast.node.holding import Holding
    from nearcast.node.selections import Selections


class Network(Protocol):
    """What a node tells and asks of the network that it has joined."""

    @property
    def peers(self) -> Mapping[str, object]:
        """The other nodes by name, there or away."""

    def claim(self, connection: Connection, connect: Connect, /) -> bool:
        """Find out whether a client has a session elsewhere, and end or use it.

        False: there is nobody to ask. Otherwise the connection waits for `Node.found_home`.
        """

    def came(self, subscription: Subscription, /) -> None:
        """Take note that a client wants something."""

    def went(self, subscription: Subscription, /) -> None:
        """Take note that it does not any longer."""

    def newcomer(self, subscription: Subscription, /) -> None:
        """Take note that a new subscription has been sent what is retained here."""

    def arrived(self, topic: str, /) -> None:
        """Take note that a message has come from another node that is retained as well."""

    def there(self, session: Session, /) -> None:
        """Take note that a client has connected, or is not connected any longer."""

    def when_known(self, release: Callable[[], None], /) -> None:
        """Call `release` once all nodes that are there know what is wanted by now."""

    def group(self, number: int, /) -> tuple[str, str] | None:
        """Return the share group and filter that a message from another node is for."""

    def restored(self) -> None:
        """Take note that the node has its memory of before."""

    def moved(self, session: Session, /, *, is_sure: bool) -> None:
        """Take note that a client is elsewhere."""

    def contest(self, message: Message, wish: tuple[int, str], publisher: str, /) -> bool:
        """Let the best of all nodes be chosen; tell whether there are other nodes to ask."""

    def ordered(self, route: Route, message: Message, meant: Collection[Session], /) -> bool:
        """Send a message to other nodes in causal order; tell whether its topic asks for that.

        To those on its route, and to those `meant` because of its values.
        """

    def published(self, message: Message, event: Event, /) -> None:
        """Let an event with a place find those near it whose gateways are other nodes."""

    def retained(self, message: Message, /) -> None:
        """Let the other nodes keep a message too; an empty payload forgets."""


class Feed(Protocol):
    """Who gets a copy of everything that clients publish; a node without a log tells nobody."""

    def take(self, message: Message, /) -> None:
        """Take one publication."""

    def take_run(
        self, count: int, topic: bytes, packets: bytes, head_size: int, qos: int, /
    ) -> None:
        """Take packets of one topic and size, whose payloads begin at `head_size`."""


@dataclass(slots=True)
class NodeState:
    """The memory of a node: sessions, routes, retained messages, timers, and the outboxes grown.

    `now_ms` is the instant of the call being served. `journal` is None where nothing has to
    survive, `log` where nobody wants to learn from what happens, `selections` without spaces,
    `holding` where every newcomer gets at once what is retained. `ending` has the sessions whose
    many subscriptions are being removed in slices.
    """

    settings: NodeSettings
    access: Access
    rng: Random
    journal: Journal | None
    router: Router
    counters: Counters = field(default_factory=Counters)
    failures: Failures = field(default_factory=Failures)
    retained: RetainedStore = field(default_factory=RetainedStore)
    timers: Timers = field(default_factory=Timers)
    slices: Slices = field(default_factory=Slices)
    ending: dict[str, Work] = field(default_factory=dict)
    subscriptions: int = 0  # of clients, not of other nodes
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    connected: int = 0
    grown: list[Connection] = field(default_factory=list)
    questions: list[Connection] = field(default_factory=list)
    observer: ClientObserver = field(default_factory=ClientObserver)
    log: Recorder | None = None
    feed: Feed | None = None
    now_ms: int = 0
    held_bytes: int = 0
    next_session: int = 1
    next_subscription: int = 1
    selections: Selections | None = None
    network: Network | None = None
    holding: Holding | None = None
    notes: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    refresh_figures: Callable[[], None] = lambda: None  # called before `$SYS` is subscribed to
    aside: list[SetAside] = field(default_factory=list)  # what could not be restored

    def set_note(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Keep something for the network over a restart, until an instant; 0 forgets it."""
        if until_ms <= self.now_ms:
            self.notes.pop(key, None)
        else:
            self.notes[key] = (until_ms, value)
        if self.journal is not None:
            self.journal.note(key, value, until_ms)

    def set_note_aside(self, key: bytes, problem: Exception) -> None:
        """Forget a note from before a restart that cannot be read, and say so."""
        until_ms, value = self.notes.pop(key)
        self.aside.append(note_aside(key, value, until_ms, problem))

    def add_subscription(self, one: Subscription, old: Subscription | None = None) -> None:
        """Let a subscription take effect, in place of one of the same identity.

        A new one is younger than all others. Raises MisuseError, and has changed nothing then.
        """
        number = one.number
        one.number = number or self.next_subscription
        if one.selection is None:
            self.router.add(one)
            if self.selections is not None:
                self.selections.explaining += one.explain - (old is not None and old.explain)
        else:
            assert self.selections is not None
            self.selections.add(one)
            if old is not None:
                self.selections.remove(old)
        self.next_subscription = max(self.next_subscription, one.number + 1)
        self.subscriptions += old is None and not one.session.is_peer
        if self.network is not None and not one.session.is_peer:
            self.network.came(one)
            if old is not None:
                self.network.went(old)

    def remove_subscription(self, one: Subscription) -> None:
        """Let a subscription end."""
        self.subscriptions -= not one.session.is_peer
        if one.selection is None:
            self.router.remove(one)
            if self.selections is not None:
                self.selections.explaining -= one.explain
        else:
            assert self.selections is not None
            self.selections.remove(one)
        if self.network is not None and not one.session.is_peer:
            self.network.went(one)

    def send(self, connection: Connection, data: bytes) -> None:
        """Append to a connection's outbox."""
        size = len(data)
        connection.outbox.append(data)
        connection.outbox_bytes += size
        connection.answer_bytes += size
        self.counters.others_sent += 1
        if not connection.has_grown:
            connection.has_grown = True
            self.grown.append(connection)

    def close(self, connection: Connection) -> None:
        """Ask the server to close once the outbox is written."""
        connection.is_closing = True
        self.mark_grown(connection)

    def mark_grown(self, connection: Connection) -> None:
        """Let the server look at a connection at the end of the turn."""
        if not connection.has_grown:
            connection.has_grown = True
            self.grown.append(connection)
