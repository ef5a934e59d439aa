"""Connections that wait for their next slice: with bytes not yet taken, or a packet half taken."""

from __future__ import annotations

from collections.abc import Callable

from nearcast.mqtt import MqttProtocolError
from nearcast.node.connection import Connection
from nearcast.node.slices import Work
from nearcast.node.state import NodeState


class Waiting:
    """Lets connections wait in the backlog, and goes on with them.

    `take` takes bytes of a connection and keeps the rest, `refuse` answers a breach, `fail` an
    exception that nobody foresaw.
    """

    def __init__(
        self,
        state: NodeState,
        take: Callable[[Connection, bytes], None],
        refuse: Callable[[Connection, MqttProtocolError], None],
        fail: Callable[[Connection, str, Exception], None],
    ) -> None:
        self._state = state
        self._slices = state.slices
        self._take = take
        self._refuse = refuse
        self._fail = fail

    def add(self, connection: Connection) -> None:
        """Let a connection wait for its turn; its `pending` must not be empty then."""
        connection.is_waiting = True
        self._slices.backlog.append(connection)

    def put_off(self, connection: Connection, data: bytes) -> None:
        """Let a connection wait with bytes that have just come."""
        self._state.counters.bytes_received += len(data)
        connection.pending.append(data)
        connection.pending_bytes = sum(map(len, connection.pending))
        self.add(connection)

    def begin(self, connection: Connection, task: Work) -> None:
        """Take a packet in slices; while `connection.task` is set, it is not done."""
        if not self._slices.run(task):
            connection.task = task

    def serve(self) -> Connection | None:
        """Give a slice to whoever has waited longest; return it, if it is a connection."""
        waiting = self._slices.backlog.popleft()
        if not isinstance(waiting, Connection):
            with self._state.failures.kept("work in slices"):
                self._slices.begin(waiting)
            return None
        waiting.is_waiting = False
        if waiting.is_closing:
            waiting.pending, waiting.task = [], None
        elif self._is_task_done(waiting):
            data = b"".join(waiting.pending)
            waiting.pending = []
            self._take(waiting, data)
        return waiting

    def _is_task_done(self, connection: Connection) -> bool:
        task, connection.task = connection.task, None
        if task is not None:
            try:
                self.begin(connection, task)
            except MqttProtocolError as error:
                self._refuse(connection, error)
            except Exception as error:  # noqa: BLE001 - a mistake of ours
                self._fail(connection, "taking a packet in slices", error)
            if has_task(connection) and not connection.is_closing:
                self.add(connection)
                return False
        return not connection.is_closing


def has_task(connection: Connection) -> bool:
    """Say whether a packet of a connection is half taken."""
    return connection.task is not None
