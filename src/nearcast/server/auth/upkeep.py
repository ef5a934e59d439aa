"""What access needs every second: bans that have changed, logins that have expired."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path

from nearcast.broker import Broker, Connection
from nearcast.model.errors import NearcastError
from nearcast.mqtt import ReasonCode
from nearcast.server.auth.bans import FILE_NAME, BanList, read_bans
from nearcast.server.auth.gate import LoginGate
from nearcast.server.learned.file_stamp import FileStamp, file_stamp

log = logging.getLogger("nearcast.server")

_EVERY_S = 1.0
_CLEANING_S = 60
_MOST_CLOSED = 1_000


class AccessUpkeep:
    """Keeps a broker's bans and logins current, once a second."""

    def __init__(
        self,
        node: Broker,
        gate: LoginGate,
        directory: Path,
        now_ms: Callable[[], int],
        schedule: Callable[[], None],
    ) -> None:
        """`schedule` ends the batch of the event loop after a disconnect."""
        self._node, self._gate, self._schedule = node, gate, schedule
        self._now_ms = now_ms  # the broker's clock
        self._path = directory / FILE_NAME
        self._stamp: FileStamp | None = None
        self._ends: list[tuple[int, int, Connection]] = []  # logins that expire, soonest first
        self._numbers = count()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; a file of bans that cannot be read is an error now, and later a warning."""
        self._read()
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()

    def logged_in(self, connection: Connection) -> None:
        """Record a login that may expire."""
        proof = connection.proof
        if proof is not None and proof.until_ms:
            heapq.heappush(self._ends, (proof.until_ms, next(self._numbers), connection))

    async def _run(self) -> None:
        seconds = 0
        while True:
            await asyncio.sleep(_EVERY_S)
            seconds += 1
            with self._node.failures.kept("keeping access current"):
                self._look(seconds)

    def _look(self, seconds: int) -> None:
        now_ms = self._gate.now_ms()
        if file_stamp(self._path) != self._stamp:
            try:
                self._read()
                self._send_banned_away()
            except NearcastError as problem:
                log.warning("the bans were refused, the old ones stay: %s", problem)
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, connection = heapq.heappop(self._ends)
            self._expired(connection, now_ms)
        if seconds % _CLEANING_S == 0:
            self._gate.grants.drop(lambda client: self._node.session_of(client) is not None)
            self._drop_closed()

    def _read(self) -> None:
        self._stamp = file_stamp(self._path)
        bans = read_bans(self._path)
        self._gate.bans = BanList(bans)
        if bans:
            told = {"event": "bans_read", "bans": len(bans)}
            log.info("%d bans are in force", len(bans), extra={"fields": told})

    def _send_banned_away(self) -> None:
        """Disconnect clients that are banned now."""
        gate, now_ms = self._gate, self._gate.now_ms()
        if not gate.bans:
            return
        for connection in self._node.client_connections():
            user = None if connection.proof is None else connection.proof.user
            client_id = "" if connection.session is None else connection.session.client_id
            host = connection.address.rpartition(":")[0]
            if gate.bans.find(host, user, client_id, now_ms / 1000) is not None:
                self._send_away(connection, ReasonCode.ADMINISTRATIVE_ACTION, "banned")

    def _expired(self, connection: Connection, now_ms: int) -> None:
        """Disconnect a client whose login has expired, unless it has logged in again."""
        proof = connection.proof
        is_current = proof is not None and 0 < proof.until_ms <= now_ms
        if is_current and connection.is_open and not connection.is_closing:
            self._send_away(connection, ReasonCode.MAXIMUM_CONNECT_TIME, "the login has expired")

    def _send_away(self, connection: Connection, reason: ReasonCode, text: str) -> None:
        self._node.disconnect(connection, reason, self._now_ms(), text)
        self._schedule()

    def _drop_closed(self) -> None:
        """Forget the logins of connections that have closed, if they are many."""
        if len(self._ends) > _MOST_CLOSED + 2 * self._node.connection_count:
            self._ends = [one for one in self._ends if one[2].is_open]
            heapq.heapify(self._ends)
