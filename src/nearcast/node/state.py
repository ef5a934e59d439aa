"""What the parts of a node share."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from nearcast.node.access import Access
from nearcast.node.connection import Connection
from nearcast.node.counters import Counters
from nearcast.node.journal import Journal
from nearcast.node.retained import RetainedStore
from nearcast.node.routes import Router
from nearcast.node.session import Session, Subscription
from nearcast.node.settings import NodeSettings
from nearcast.node.timers import Timers

if TYPE_CHECKING:  # PyArrow stays out of a broker that keeps no event log, Numba without spaces
    from nearcast.eventlog.records import Recorder
    from nearcast.node.selections import Selections


@dataclass(slots=True)
class NodeState:
    """The memory of a node: sessions, routes, retained messages, timers, and the outboxes grown.

    `now_ms` is the instant of the call being served. `journal` is None where nothing has to
    survive, `log` where nobody wants to learn from what happens, `selections` without spaces.
    """

    settings: NodeSettings
    access: Access
    rng: Random
    journal: Journal | None
    router: Router
    counters: Counters = field(default_factory=Counters)
    retained: RetainedStore = field(default_factory=RetainedStore)
    timers: Timers = field(default_factory=Timers)
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    connected: int = 0
    grown: list[Connection] = field(default_factory=list)
    questions: list[Connection] = field(default_factory=list)
    log: Recorder | None = None
    now_ms: int = 0
    held_bytes: int = 0
    next_session: int = 1
    next_subscription: int = 1
    selections: Selections | None = None

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

    def remove_subscription(self, one: Subscription) -> None:
        """Let a subscription end."""
        if one.selection is None:
            self.router.remove(one)
            if self.selections is not None:
                self.selections.explaining -= one.explain
        else:
            assert self.selections is not None
            self.selections.remove(one)

    def send(self, connection: Connection, data: bytes) -> None:
        """Append to a connection's outbox."""
        connection.outbox.append(data)
        connection.outbox_bytes += len(data)
        self.counters.others_sent += 1
        if not connection.has_grown:
            connection.has_grown = True
            self.grown.append(connection)

    def close(self, connection: Connection) -> None:
        """Ask the server to close once the outbox is written."""
        connection.is_closing = True
        if not connection.has_grown:
            connection.has_grown = True
            self.grown.append(connection)
