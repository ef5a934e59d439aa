"""The state that the parts of a broker share, and the hooks of a cluster.

Read next: `session/session.py` and `session/connection.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from nearcast.broker.access import Access
from nearcast.broker.counters import Counters
from nearcast.broker.internal_errors import InternalErrors
from nearcast.broker.observer import ClientObserver, LiveObserver
from nearcast.broker.persistence.journal import Journal
from nearcast.broker.persistence.unapplied_records import SetAside, note_aside
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import Route, Router
from nearcast.broker.retained.hooks import RetainedHooks
from nearcast.broker.retained.store import RetainedStore
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.settings import BrokerSettings
from nearcast.broker.slices import Slices, Work
from nearcast.broker.timers import Timers
from nearcast.model import Event, Space
from nearcast.mqtt import Connect

if TYPE_CHECKING:  # a broker imports PyArrow only for an event log, Numba only for spaces
    from nearcast.broker.content.subscriptions import ContentSubscriptions
    from nearcast.eventlog.records import Recorder


class ClusterHooks(Protocol):
    """What a broker calls in the cluster that it has joined; `nearcast.cluster` implements it."""

    @property
    def is_joined(self) -> bool:
        """Whether there is a cluster."""

    @property
    def peers(self) -> Mapping[str, object]:
        """The other nodes by name, connected or not."""

    def claim(self, connection: Connection, connect: Connect, /) -> bool:
        """Ask the other nodes whether one has the client's session; that node ends or relays it.

        Returns False if there is no node to ask. Otherwise the connection waits for
        `Broker.found_home`.
        """

    def is_home(self, identifier: str, /) -> bool:
        """Return whether this node is the one where a new session of this name belongs."""

    def came(self, subscription: SessionSubscription, /) -> None:
        """Announce a new subscription of a client of this node."""

    def went(self, subscription: SessionSubscription, /) -> None:
        """Withdraw a subscription of a client of this node."""

    def newcomer(self, subscription: SessionSubscription, /) -> None:
        """Report that a new subscription has been sent the messages retained at this node."""

    def arrived(self, topic: str, /) -> None:
        """Report that a message with RETAIN has come live from another node, on this topic."""

    def there(self, session: Session, /) -> None:
        """Report that a client has connected or disconnected."""

    def when_known(self, release: Callable[[], None], /) -> None:
        """Call `release` once all connected nodes know the subscriptions made so far."""

    def group(self, number: int, /) -> tuple[str, str] | None:
        """Return the share group and filter that a message from another node is for."""

    def restored(self) -> None:
        """Report that the broker has restored its sessions and notes."""

    def moved(self, session: Session, /, *, is_sure: bool) -> None:
        """Report a client's new position; from QoS 1 or 2 (`is_sure`) it survives a crash."""

    def contest(self, message: Message, wish: tuple[int, str], publisher: str, /) -> bool:
        """Choose the best subscriptions among all nodes; return False if there is no other node."""

    def ordered(self, route: Route, message: Message, meant: Collection[Session], /) -> bool:
        """Send a message to other nodes in causal order; return False if its topic has none.

        The receivers are the peers on its route and the peers `meant` because of its values.
        """

    def takes(self, space: Space, /) -> bool:
        """Return whether the events of a space are to be reported with `published`."""

    def published(self, message: Message, event: Event, publisher: Session | None, /) -> None:
        """Send an event to the clients of other nodes that want it because of its values."""

    def retained(self, message: Message, /) -> None:
        """Replicate a retained message to the other nodes; an empty payload deletes it there."""


class NoCluster(ClusterHooks):
    """The cluster of a single broker: what the broker reports to it has no effect."""

    @property
    def is_joined(self) -> bool:
        """Return False: there is no cluster."""
        return False

    @property
    def peers(self) -> Mapping[str, object]:
        """Return no other nodes."""
        return MappingProxyType({})

    def claim(self, _connection: Connection, _connect: Connect, /) -> bool:
        """Return False: no other node has the session."""
        return False

    def is_home(self, _identifier: str, /) -> bool:
        """Return True: there is no other node."""
        return True

    def when_known(self, release: Callable[[], None], /) -> None:
        """Call `release` now: there is no node that would have to know."""
        release()

    def takes(self, _space: Space, /) -> bool:
        """Return False: there is no other node."""
        return False

    def group(self, _number: int, /) -> None:
        """Return None: no message comes from another node."""

    def contest(self, _message: Message, _wish: tuple[int, str], _publisher: str, /) -> bool:
        """Return False: the broker chooses alone."""
        return False

    def ordered(self, _route: Route, _message: Message, _meant: Collection[Session], /) -> bool:
        """Return False: nothing was sent to another node."""
        return False


class PublishFeed(Protocol):
    """Receives a copy of everything that clients publish, where a feed is configured."""

    def take(self, message: Message, /) -> None:
        """Add one publication."""

    def take_run(
        self, count: int, topic: bytes, packets: bytes, head_size: int, qos: int, /
    ) -> None:
        """Add packets of one topic and size, whose payloads begin at `head_size`."""


@dataclass(slots=True)
class BrokerState:
    """The state of a broker: sessions, routes, retained messages, timers, dirty connections.

    Each attribute says who changes it, unless it is set once, where the broker is made.
    """

    settings: BrokerSettings
    """The limits in force; replaced as a whole by `Broker.change_limits`."""
    access: Access
    """Decides who may log in, publish and subscribe; replaced by `rechecks.py`."""
    rng: Random
    """The only source of randomness: assigned client identifiers, generations of peers."""
    journal: Journal
    """What must survive a restart is written here (`NoJournal`: nothing has to). `Broker.restore`
    replaces it."""
    router: Router
    """All subscriptions without conditions, and the routes compiled from them. Changed by
    `add_subscription` and `remove_subscription`."""
    counters: Counters = field(default_factory=Counters)
    """Totals for the metrics; whatever happens adds to one of them, and nothing resets them."""
    failures: InternalErrors = field(default_factory=InternalErrors)
    """Unexpected exceptions are reported here; the server sets its listener."""
    retained: RetainedStore = field(default_factory=RetainedStore)
    """The retained messages by topic; changed by `retained/updates.py`, restored by `replay.py`."""
    timers: Timers = field(default_factory=Timers)
    """Keep-alives, wills and expiries to come; `Broker.wake` runs those that are due."""
    slices: Slices = field(default_factory=Slices)
    """The time slice of the current client, and the backlog of work in slices; the server says when
    a slice is spent."""
    ending: dict[str, Work] = field(default_factory=dict)
    """By client identifier: ended sessions whose many subscriptions are removed in slices, by
    `session/lifecycle.py`."""
    rules: int = 0
    """How often the rules of access have been replaced; `Session.rules` compares with it."""
    subscriptions: int = 0
    """How many subscriptions clients have, peers not counted; changed as `router` is."""
    sessions: dict[str, Session] = field(default_factory=dict)
    """Sessions by client identifier, connected or not; those of peers included. Added by
    `session/connect.py` and `peers/sessions.py`, removed by `session/lifecycle.py`."""
    connections: set[Connection] = field(default_factory=set)
    """All open connections, those before CONNECT included; `Broker.open` adds, `Broker.lost`
    removes, for peers `peers/sessions.py`."""
    connected: int = 0
    """How many sessions of clients have a connection; changed by `session/connect.py` and
    `session/lifecycle.py`."""
    dirty: list[Connection] = field(default_factory=list)
    """Connections that the server has to write to or close, each once, in the order they became
    dirty. `mark_dirty` adds to it, `Broker.take_dirty` empties it after each batch."""
    questions: list[Connection] = field(default_factory=list)
    """Connections whose login the server has to check; `session/connect.py` adds,
    `Broker.take_questions` empties it."""
    observer: ClientObserver = field(default_factory=ClientObserver)
    """Is called when clients come and go; the server sets it, for its log."""
    watch: LiveObserver | None = None
    """Is called for positions and events; None while nobody looks at a map of them."""
    log: Recorder | None = None
    """The recorder of the event log, set by the server; None where no event log is kept.
    `event_log_hooks.aside` suspends it for a moment."""
    feed: PublishFeed | None = None
    """Gets a copy of every publication of a client; set by the server, None without a feed."""
    now_ms: int = 0
    """The instant of the call being served; set by each call of `Broker`."""
    held_bytes: int = 0
    """Size of all messages queued or in flight, each counted once however many sessions hold it;
    changed by `publish/session_queues.py`."""
    next_session: int = 1
    """The number of the next session; it grows as `sessions` does."""
    next_subscription: int = 1
    """The birth number of the next subscription: a greater one is younger. Grows in
    `add_subscription`."""
    selections: ContentSubscriptions | None = None
    """The content subscriptions; None where no space is configured."""
    network: ClusterHooks = field(default_factory=NoCluster)
    """The cluster that this broker has joined (`Broker.join`)."""
    deferral: RetainedHooks = field(default_factory=RetainedHooks)
    """Is told of what concerns deferred retained delivery; a `DeferredRetained` where some topics
    are deferred."""
    notes: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """Journaled values of the cluster and of deferred delivery: key to (until_ms, value); changed
    by `set_note`."""
    refresh_figures: Callable[[], None] = lambda: None
    """Is called when a client subscribes to `$SYS`, so that the metrics there are current; the
    server sets it."""
    aside: list[SetAside] = field(default_factory=list)
    """Records that could not be restored; `Broker.restore` returns them."""

    def set_note(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Journal a value under a key until an instant; one that has passed deletes it."""
        self.journal.note(key, value, until_ms)  # first: it may raise
        if until_ms <= self.now_ms:
            self.notes.pop(key, None)
        else:
            self.notes[key] = (until_ms, value)

    def set_note_aside(self, key: bytes, problem: Exception) -> None:
        """Remove a restored note that cannot be read, and report it among the unapplied records."""
        until_ms, value = self.notes.pop(key)
        self.aside.append(note_aside(key, value, until_ms, problem))

    def record_subscription(
        self, subscription: SessionSubscription, old: SessionSubscription | None = None
    ) -> None:
        """Journal a subscription, if its session is durable, and put it into effect.

        Raises what either raises; nothing has changed then.
        """
        if not subscription.session.is_durable:
            self.add_subscription(subscription, old)
            return
        subscription.number = subscription.number or self.next_subscription
        with self.journal.all_or_none():
            self.journal.subscribed(subscription)
            self.add_subscription(subscription, old)

    def add_subscription(
        self, one: SessionSubscription, old: SessionSubscription | None = None
    ) -> None:
        """Put a subscription into effect, in place of `old`, the one of the same identity.

        A new one gets the greatest number so far. Raises MisuseError; nothing has changed then.
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
        if one.session.is_peer:
            return
        self.subscriptions += old is None
        self.network.came(one)
        if old is not None:
            self.network.went(old)

    def remove_subscription(self, subscription: SessionSubscription) -> None:
        """Remove a subscription from the routes, the matcher and the cluster."""
        if subscription.selection is None:
            self.router.remove(subscription)
            if self.selections is not None:
                self.selections.explaining -= subscription.explain
        else:
            assert self.selections is not None
            self.selections.remove(subscription)
        if subscription.session.is_peer:
            return
        self.subscriptions -= 1
        self.network.went(subscription)

    def presence_changed(self, session: Session) -> None:
        """Report to the cluster and the event log that a client or a peer came or went."""
        if not session.is_peer:
            self.network.there(session)
            if self.watch is not None:
                self.watch.present(session)
        if self.log is not None:
            self.log.present(session.client_id, self.now_ms, is_there=session.link is not None)

    def send(self, connection: Connection, data: bytes) -> None:
        """Append a packet other than PUBLISH to a connection's outbox."""
        size = len(data)
        connection.outbox.append(data)
        connection.outbox_bytes += size
        connection.answer_bytes += size
        self.counters.others_sent += 1
        if not connection.is_dirty:
            self.mark_dirty(connection)

    def close(self, connection: Connection) -> None:
        """Mark a connection to be closed once its outbox is written."""
        connection.is_closing = True
        self.mark_dirty(connection)

    def mark_dirty(self, connection: Connection) -> None:
        """Mark a connection dirty: the server looks at it at the end of the loop batch."""
        if not connection.is_dirty:
            connection.is_dirty = True
            self.dirty.append(connection)
