"""Logins checked in threads, with a queue that is fair between addresses.

A password takes about 50 ms of a core, a hook the time of its server. Addresses are served
round-robin, so that a flood of wrong passwords from one address delays a login from another by a
check or two; connections that have closed meanwhile are skipped; and an address with too many
queued checks is answered "server busy".
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address

from nearcast.broker import Connection, LoginVerdict
from nearcast.server.auth.logins import Login

MOST_WAITING = 128
"""Queued checks per address; more could not be checked before their connections time out."""

_NETWORK_BITS = 64  # a household usually owns a whole /64

LoginCheck = Callable[[Connection], Login]


def source_of(peer: str) -> str:
    """Return the key for fairness: an IPv4 address, or the network of an IPv6 address.

    >>> source_of("10.0.0.7:51234"), source_of("2001:db8::1:2:3:51234")
    ('10.0.0.7', '2001:db8::/64')
    """
    return _source_of_host(peer.rpartition(":")[0])


@lru_cache(maxsize=4_096)
def _source_of_host(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    shift = 128 - _NETWORK_BITS
    return f"{IPv6Address(int(address) >> shift << shift)}/{_NETWORK_BITS}"


class PasswordChecks:
    """Checks logins in a few threads, round-robin over addresses."""

    def __init__(
        self, check: LoginCheck, answer: Callable[[Connection, Login], None], workers: int = 0
    ) -> None:
        """`workers` is the number of threads; 0: as many as there are cores, 2 to 4."""
        self.check = check
        self._answer = answer
        self._workers = workers or max(2, min(4, os.cpu_count() or 2))
        self._most_of_one = self._workers - 1  # a worker stays free for other addresses
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[str, deque[Connection]] = {}  # by address, next one first
        self._running: Counter[str] = Counter()  # checks in progress by address

    def ask(self, connection: Connection) -> None:
        """Queue the check of a connection's CONNECT."""
        source = source_of(connection.address)
        waiting = self._waiting.get(source)
        if waiting is not None and len(waiting) >= MOST_WAITING:
            self._drop_closed(source)
            waiting = self._waiting.get(source)
        if waiting is not None and len(waiting) >= MOST_WAITING:
            self._answer(connection, Login(LoginVerdict.BUSY))
            return
        self._waiting.setdefault(source, deque()).append(connection)
        self._start()

    def _drop_closed(self, source: str) -> None:
        still = deque(one for one in self._waiting[source] if _is_there(one))
        self._waiting[source] = still

    def _start(self) -> None:
        """Start as many checks as there are free workers."""
        while self._running.total() < self._workers:
            found = self._next()
            if found is None:
                return
            source, connection = found
            self._running[source] += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="password")
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._pool, self.check, connection)
            done.add_done_callback(partial(self._finished, source, connection))

    def _next(self) -> tuple[str, Connection] | None:
        """Return the next connection to check; its address goes to the end of the queue."""
        for source in list(self._waiting):
            if self._running[source] >= self._most_of_one:
                continue
            waiting = self._waiting.pop(source)
            while waiting:
                connection = waiting.popleft()
                if _is_there(connection):
                    if waiting:
                        self._waiting[source] = waiting
                    return source, connection
        return None

    def _finished(self, source: str, connection: Connection, done: asyncio.Future[Login]) -> None:
        self._running[source] -= 1
        if not self._running[source]:
            del self._running[source]
        if done.cancelled():
            return
        problem = done.exception()
        refused = Login(LoginVerdict.FORBIDDEN, reason=repr(problem))
        self._answer(connection, refused if problem is not None else done.result())
        self._start()

    def stop(self) -> None:
        """Start no further check."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _is_there(connection: Connection) -> bool:
    return connection.is_open and not connection.is_closing and connection.connect is not None
