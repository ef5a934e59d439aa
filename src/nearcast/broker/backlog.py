"""Connections that wait for their next slice: with unprocessed bytes, or a packet half done.

Read next: `slices.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.broker.session.connection import Connection
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.mqtt import MqttProtocolError


class Backlog:
    """Queues connections in the backlog, and continues with them.

    `take` processes bytes of a connection and keeps the rest, `refuse` answers a protocol error,
    `fail` an unexpected exception.
    """

    def __init__(
        self,
        state: BrokerState,
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
        """Queue a connection in the backlog; its `pending` must not be empty then."""
        connection.is_waiting = True
        self._slices.backlog.append(connection)

    def put_off(self, connection: Connection, data: bytes) -> None:
        """Queue a connection with bytes that have just been received."""
        self._state.counters.bytes_received += len(data)
        connection.pending.append(data)
        connection.pending_bytes = sum(map(len, connection.pending))
        self.add(connection)

    def begin(self, connection: Connection, task: Work) -> None:
        """Process a packet in slices; `connection.task` is set while it is not done."""
        if not self._slices.run(task):
            connection.task = task

    def serve(self) -> Connection | None:
        """Give a slice to the oldest entry of the backlog; return it if it is a connection."""
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
            except Exception as mistake:  # noqa: BLE001 - of ours
                self._fail(connection, "taking a packet in slices", mistake)
            if has_task(connection) and not connection.is_closing:
                self.add(connection)
                return False
        return not connection.is_closing


def has_task(connection: Connection) -> bool:
    """Return whether a packet of the connection is half done."""
    return connection.task is not None
