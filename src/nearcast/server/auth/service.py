"""Access as one server uses it: logins, bans, rates, audit; from its start to its end."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from pathlib import Path

from nearcast.broker import Broker, Connection, LoginVerdict
from nearcast.config import Configuration
from nearcast.server.audit_log import close_audit, open_audit, set_log_level
from nearcast.server.auth.logins import Login
from nearcast.server.auth.rules import ConfiguredAccess, make_access
from nearcast.server.auth.upkeep import AccessUpkeep
from nearcast.server.clock import Clock
from nearcast.server.file_modes import todo_for, wide_files
from nearcast.server.listeners.message_rates import MessageRates
from nearcast.server.listeners.tls import tls_context
from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.server")

_WAITING_LOGINS = 8  # threads, where a login waits for another server


class AccessService:
    """Who may log in to a server, and what is written about it."""

    def __init__(self, configuration: Configuration, clock: Clock) -> None:
        self._configuration = configuration
        self._clock = clock
        self.access = make_access(configuration)
        self.audit = open_audit(configuration.audit)
        self._node: Broker | None = None
        self._turns: LoopBatches | None = None
        self._upkeep: AccessUpkeep | None = None
        self._watch_decisions()

    def attach(self, node: Broker) -> None:
        """Keep what logins bring along in a broker's journal."""
        self._node = node
        self.access.gate.grants.notes = node.notes

    @property
    def login_workers(self) -> int:
        """How many threads check logins; 0: the usual number."""
        return _WAITING_LOGINS if self.access.checks.plugins else 0

    @property
    def has_message_rates(self) -> bool:
        """Whether publications are counted."""
        return bool(MessageRates(self._configuration.rates, self._clock.now_ms))

    def start(self, turns: LoopBatches) -> None:
        """Name files that are too open, and keep bans, rates and logins current."""
        assert self._node is not None
        self._turns = turns
        for path, mode, why in wide_files(self._configuration):
            log.warning("%s has mode %03o, and %s: %s", path, mode, why, todo_for(path, why))
        self._take_rates()
        directory = Path(self._configuration.node.data)
        self._upkeep = AccessUpkeep(
            self._node, self.access.gate, directory, self._clock.now_ms, turns.schedule
        )
        self._upkeep.start()

    def settle(self, connection: Connection, login: Login) -> LoginVerdict:
        """Return the final verdict on a login that was checked."""
        verdict = self.access.gate.settle(connection, login)
        if verdict is LoginVerdict.WELCOME and self._upkeep is not None:
            self._upkeep.logged_in(connection)
        return verdict

    def prepare(self, configuration: Configuration) -> ConfiguredAccess:
        """Return the access of a configuration that is to be in force; nothing has changed yet."""
        return make_access(configuration, self.access)

    def take(self, configuration: Configuration, access: ConfiguredAccess) -> None:
        """Put another configuration into force."""
        self._configuration, self.access = configuration, access
        self._watch_decisions()
        set_log_level(configuration.log.level)
        if self._turns is not None:
            self._turns.checks.check = access.check
            self._take_rates()

    def stop(self) -> None:
        """End what runs."""
        if self._upkeep is not None:
            self._upkeep.stop()

    def close(self) -> None:
        """Close the audit log, as the last thing."""
        close_audit(self.audit)
        self.audit = None

    def _take_rates(self) -> None:
        """Count the publications of connections from now on, if they are limited."""
        assert self._turns is not None
        rates = MessageRates(self._configuration.rates, self._clock.now_ms)
        self._turns.message_rates = rates or None

    def _watch_decisions(self) -> None:
        """Write what rules allow to the audit log, if it asks for that."""
        is_wanted = self._configuration.audit.decisions == "all"
        self.access.on_allowed = None
        if self.audit is not None and is_wanted:
            self.access.on_allowed = partial(self.audit.record, "allowed")


def listener_contexts(configuration: Configuration) -> list[ssl.SSLContext | None]:
    """Return new TLS contexts of all listeners for clients: their files may be new."""
    return [
        tls_context(one) if one.kind in ("tls", "wss") else None for one in configuration.listener
    ]
