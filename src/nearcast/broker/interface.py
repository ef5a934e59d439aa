"""What a cluster and a server may ask of a broker and set in it, beside serving its connections.

They use these methods, not `BrokerState`, which is for the broker's own modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearcast.broker.content.spaces import SpaceSettings
from nearcast.broker.event_log_hooks import note_start
from nearcast.broker.observer import ClientObserver
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import PeerSession, Session
from nearcast.broker.settings import BrokerSettings
from nearcast.broker.state import BrokerState, PublishFeed

if TYPE_CHECKING:
    from nearcast.broker.retained.deferred import DeferredRetained
    from nearcast.eventlog.records import Recorder


class BrokerNotes:
    """Values of the cluster in the broker's journal, by key; each lasts until an instant."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def __contains__(self, key: bytes) -> bool:
        return key in self._state.notes

    def __len__(self) -> int:
        return len(self._state.notes)

    def get(self, key: bytes, default: bytes) -> bytes:
        """Return the value of a key, or `default`."""
        found = self._state.notes.get(key)
        return default if found is None else found[1]

    def until(self, key: bytes) -> int:
        """Return the instant until which the value of a key lasts; it must have one."""
        return self._state.notes[key][0]

    def starting_with(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return key and value of all notes whose keys begin with `prefix`. O(notes)."""
        notes = self._state.notes.items()
        return [(key, value) for key, (_, value) in notes if key.startswith(prefix)]

    def expiries(self) -> list[tuple[int, bytes]]:
        """Return all keys, each behind the instant until which it lasts."""
        return [(until_ms, key) for key, (until_ms, _) in self._state.notes.items()]

    def set(self, key: bytes, value: bytes, until_ms: int) -> None:
        """Journal a value under a key until an instant."""
        self._state.set_note(key, value, until_ms)

    def delete(self, key: bytes) -> None:
        """Journal that a key has no value any more."""
        self._state.set_note(key, b"", 0)

    def expire(self, key: bytes) -> None:
        """Drop a value whose instant has passed; the journal knows that already."""
        self._state.notes.pop(key, None)

    def set_aside(self, key: bytes, problem: Exception) -> None:
        """Remove a restored value that cannot be read, and report it."""
        self._state.set_note_aside(key, problem)


class BrokerInterface:
    """The base of `Broker`: short answers from its state, and what is set once at the start."""

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self.notes = BrokerNotes(state)
        self.failures = state.failures  # unexpected exceptions are reported here
        self.session_of = state.sessions.get  # by client identifier, connected or not
        self.subscribers = state.router.subscribers  # those without conditions to a topic
        self.retained_messages = state.retained.all
        self.send, self.close, self.mark_dirty = state.send, state.close, state.mark_dirty

    # --- what it has ------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The instant of the call being served."""
        return self.state.now_ms

    @property
    def settings(self) -> BrokerSettings:
        """The limits in force."""
        return self.state.settings

    @property
    def spaces(self) -> tuple[SpaceSettings, ...]:
        """The configured spaces."""
        return tuple(self.state.router.spaces.all)

    @property
    def hides_traffic(self) -> bool:
        """Whether counts of traffic must not be on `$SYS`: they tell who got what.

        Positions are private in some space, and no rules say who may read `$SYS`.
        """
        return self.state.router.spaces.hides_positions and not self.state.access.has_rules()

    @property
    def observer(self) -> ClientObserver:
        """Is told when clients come and go."""
        return self.state.observer

    @property
    def is_journaled(self) -> bool:
        """Whether the broker's state survives a restart."""
        return self.state.journal.is_kept

    @property
    def recorder(self) -> Recorder | None:
        """The recorder of the event log; None while nothing is recorded."""
        return self.state.log

    @property
    def deferred_retained(self) -> DeferredRetained | None:
        """Deferred retained delivery; None where no topic asks for it."""
        return self.state.deferral.deferred

    @property
    def connected_clients(self) -> int:
        """How many clients are connected."""
        return self.state.connected

    @property
    def connection_count(self) -> int:
        """How many connections are open, those before CONNECT and those of peers included."""
        return len(self.state.connections)

    def client_sessions(self) -> list[Session]:
        """Return the sessions of all clients, connected or not. O(sessions)."""
        return [session for session in self.state.sessions.values() if not session.is_peer]

    def client_connections(self) -> list[Connection]:
        """Return the connections of clients, those before CONNECT included. O(connections)."""
        return [connection for connection in self.state.connections if not connection.is_peer]

    def own_subscriptions(self, *, is_shared: bool) -> int:
        """Return how many subscriptions clients have, in share groups or not. O(those of peers)."""
        router = self.state.router
        count = router.shared_count if is_shared else router.subscription_count
        peers = (one for one in self.state.sessions.values() if one.is_peer)
        return count - sum(
            sum(bool(one.group) == is_shared for one in peer.subscriptions.values())
            for peer in peers
        )

    def node_names(self) -> set[str]:
        """Return the names of the nodes that have a peer session, connected or not. O(sessions)."""
        sessions = self.state.sessions.values()
        return {one.node_name for one in sessions if isinstance(one, PeerSession) and one.is_node}

    # --- what is set ------------------------------------------------------------------------

    def login_rules(self, connection: Connection) -> bytes | None:
        """Return the rules that the login of a relayed client brought along; None: none."""
        return self.state.access.rules_of(connection)

    def keep_login_rules(self, connection: Connection, client_id: str) -> None:
        """Keep the rules of a login for a session that is about to be adopted: it is checked."""
        self.state.access.bind(connection, client_id)

    def observe(self, observer: ClientObserver) -> None:
        """Call an observer when clients come and go."""
        self.state.observer = observer

    def refresh_metrics_with(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` when a client subscribes to `$SYS`."""
        self.state.refresh_figures = refresh

    def record_with(self, recorder: Recorder, now_ms: int) -> None:
        """Record events from now on, first the start and the restored subscriptions."""
        self.state.log = recorder
        self.state.now_ms = now_ms
        note_start(self.state)

    def feed_with(self, feed: PublishFeed, stand_in: Recorder) -> None:
        """Copy the clients' publications to a feed.

        A broker without an event log does not report every publication: `stand_in` is then used.
        """
        self.state.feed = feed
        if self.state.log is None:
            self.state.log = stand_in
