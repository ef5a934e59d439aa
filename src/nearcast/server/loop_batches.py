"""Loop batches: everything read is handled, then stored in the journal, then written out.

A connection that sends much gets a slice of a batch and continues in later ones: other clients are
served in between, and nothing more is read from it meanwhile. Nor is anything read from a client
that does not read its answers.

Output leaves once per connection and batch, after the batch's journal is written (and, with
durability `power`, synced: batches during a sync share the next one).

Read next: `nearcast/broker/slices.py`, `storage/journal_file.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from nearcast.broker import Broker, Connection, LoginVerdict
from nearcast.broker.slices import Work
from nearcast.server.auth.logins import Login
from nearcast.server.auth.password_checks import LoginCheck, PasswordChecks
from nearcast.server.clock import Clock
from nearcast.server.metrics.measurements import LatencyHistogram
from nearcast.server.sockets.direct_writes import DirectWrites, Wire
from nearcast.server.storage.journal_file import JournalFile

if TYPE_CHECKING:
    from nearcast.server.listeners.message_rates import MessageRates

log = logging.getLogger("nearcast.server")

_MOST_READS: Final = 256  # per batch: of thousands of clients the first need not wait so long
_CROWD_READS: Final = 8
_CROWD_BYTES: Final = 1 << 16
_CROWD_DELAYS: Final = 8
_CROWD_S = 0.004  # and no longer: what was read first waits for its answer
_COMPACTION_PAUSE_MS = 30_000  # after a failed compaction
_SLICE_S = 0.004  # of work for one connection, then others are served
_BULK_S = 0.008  # per loop iteration, for all large reads and for the backlog
_BULK_BYTES: Final = 1 << 11  # of larger reads: less is handled in any case
_SMALL_READ: Final = 256  # is handled in any case: others wait for it a fraction of a millisecond


class LoopBatches:
    """Drives a broker: collects the reads of a batch, then ends it."""

    def __init__(
        self,
        node: Broker,
        clock: Clock,
        *,
        journal: JournalFile | None = None,
        check_login: LoginCheck | None = None,
        settle: Callable[[Connection, Login], LoginVerdict] = lambda _, login: login.verdict,
        login_workers: int = 0,
        on_failure: Callable[[BaseException], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.on_taken: Callable[[], None] | None = None  # all reads are handled, nothing is stored
        self.on_written: Callable[[], None] | None = None  # all stored output is written
        self.message_rates: MessageRates | None = None  # of connections from now on
        self.node = node
        self._counters = node.counters
        self._receive = node.receive
        self.clock = clock
        self._journal = journal
        self.checks = PasswordChecks(check_login or _nobody_is_welcome, self._answer, login_workers)
        self._settle = settle
        self._on_failure = on_failure
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.now_ms = clock.now_ms()  # time of the current batch
        self.latency = LatencyHistogram()  # from read to write, sampled
        self._sampled_s = 0.0  # start of the sampled batch; below 0: batches to skip; 0: none
        self._sent_before = 0
        self._is_scheduled = False  # `_end_turn` is due in this iteration
        self._is_gathering = False  # `end_reads` ends the batch
        self._reads = 0  # in this batch
        self._reads_before = self._reads_seen = 0
        self._bytes_before = self._delays = 0
        self._crowd_until_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._direct = DirectWrites(node.failures)
        self._held: list[tuple[Connection, list[bytes]]] = []  # waits for a sync of the journal
        self._sync: asyncio.Future[None] | None = None  # the sync in progress
        self._compacts_at_ms = 0  # no compaction before
        self._slices = node.slices
        self._slices.is_spent = self._is_slice_spent
        self._slice_until_s = self._bulk_until_s = 0.0  # 0: not started
        self._bulk_bytes = 0
        self._is_serving = False
        self._gone: set[Connection] = set()  # lost, with reads that are not handled yet
        self._is_over = False  # nothing is stored any more, so nothing may be sent either

    def schedule(self) -> None:
        """Schedule the end of the batch for when everything readable has been read."""
        if not self._is_scheduled:
            self.now_ms = self.clock.now_ms()
            if not self._is_gathering:  # else `end_reads` ends it
                self._is_scheduled = True
                self._loop.call_soon(self._end_turn)

    def read(self, connection: Connection, data: bytes) -> None:
        """Handle a read; if the previous batch had only one read, answer this one at once.

        Later, if larger reads have used up their share: 9,000 bytes of a condition take 10 ms.
        """
        self._slice_until_s = 0.0
        size = len(data)
        if size > _SMALL_READ:
            self._bulk_bytes += size
            if self._bulk_bytes > _BULK_BYTES and self._is_bulk_spent():
                self._put_off(connection, data)
                return
        self.take(connection, data)

    def take(self, connection: Connection, data: bytes) -> None:
        """Handle bytes that were read, as part of the current slice."""
        self.now_ms = self.clock.now_ms()  # the batch may have been delayed
        if not self._sampled_s:
            self._sampled_s = perf_counter()
            self._sent_before = self._counters.publish_sent
        if self._is_scheduled or self._is_gathering:
            self._receive(connection, data, self.now_ms)
        elif self._reads_before > 1:
            self.schedule()
            self._receive(connection, data, self.now_ms)
        else:
            self._receive(connection, data, self.now_ms)
            self.end()
            self.schedule()
        self._reads += 1
        if connection.is_waiting or connection.is_paused:
            self.look_after(connection)
        if not self._reads % _MOST_READS:
            self.end()

    def begin_reads(self) -> None:
        """Begin a batch of what was read from many sockets."""
        self._is_gathering = True

    def end_reads(self) -> bool:
        """End that batch, now or with those behind it; True: a crowd's goes on with more reads."""
        if self._is_scheduled:
            self._is_gathering = False
            return False
        if self._is_crowded():
            return True
        self._is_gathering = False
        self._end_batch()
        return False

    # --- fairness -------------------------------------------------------------------------

    def _is_slice_spent(self) -> bool:
        """Return whether the slice is used up; the first call starts it."""
        now_s = perf_counter()
        if not self._slice_until_s:
            self._slice_until_s = now_s + _SLICE_S
        return now_s >= self._slice_until_s

    def _is_bulk_spent(self) -> bool:
        """Return whether large reads have used up their share of this loop iteration."""
        now_s = perf_counter()
        if not self._bulk_until_s:
            self._bulk_until_s = now_s + _BULK_S
        return now_s >= self._bulk_until_s

    def _put_off(self, connection: Connection, data: bytes) -> None:
        self.node.put_off(connection, data, self.clock.now_ms())
        self.look_after(connection)
        self._serve_soon()

    def look_after(self, connection: Connection) -> None:
        """Pause reading from a client that has a backlog or does not read its answers."""
        is_full = self._is_full(connection)
        if is_full and not connection.is_unread:
            self._counters.unread += 1
        if connection.is_waiting or is_full:
            self.hold_reading(connection)

    def hold_reading(self, connection: Connection) -> None:
        """Stop reading from a client for now."""
        if not connection.is_unread and not connection.is_closing:
            connection.is_unread = True
            wire: Wire = connection.transport
            wire.pause_reading()

    def read_on(self, connection: Connection) -> None:
        """Read from a client again, unless it has a backlog or unread answers."""
        is_ready = not (
            connection.is_waiting or connection.is_throttled or self._is_full(connection)
        )
        if connection.is_unread and is_ready:
            connection.is_unread = False
            wire: Wire = connection.transport
            wire.resume_reading()

    def _is_full(self, connection: Connection) -> bool:
        most = self.node.settings.max_answer_bytes
        return connection.is_paused and connection.answer_bytes > most

    def work(self, work: Work) -> None:
        """Run some work in slices, starting now."""
        self._slice_until_s = 0.0
        self._slices.begin(work)
        self.schedule()

    def lost(self, connection: Connection) -> None:
        """Handle a lost connection, after the bytes read from it before."""
        if connection.is_waiting and not connection.is_closing:
            self._gone.add(connection)
        else:
            self.node.lost(connection, self.clock.now_ms())
        self.schedule()

    def _serve_soon(self) -> None:
        if not self._is_serving and self._slices.backlog:
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Give slices to connections with a backlog, within the bulk share of this iteration."""
        self._is_serving = False
        if self._is_over:
            return
        self.now_ms = self.clock.now_ms()
        self._bulk_until_s = 0.0
        backlog = self._slices.backlog
        for _ in range(len(backlog)):
            if not backlog or self._is_bulk_spent():
                break
            self._slice_until_s = 0.0
            connection = self.node.serve_backlog(self.now_ms)
            if connection is not None and not connection.is_waiting:
                self._served(connection)
        self.schedule()  # whose end serves on

    def _served(self, connection: Connection) -> None:
        """Handle that a connection has no backlog left."""
        if connection in self._gone:
            self._gone.discard(connection)
            self.node.lost(connection, self.now_ms)
        else:
            self.look_after(connection)
            self.read_on(connection)

    # --- the end of a batch ---------------------------------------------------------------

    def _end_turn(self) -> None:
        """End the batch, unless it is a crowd's: then a few loop iterations make one."""
        if self._is_crowded():
            self._loop.call_soon(self._end_turn)
        else:
            self._is_scheduled = False
            self._end_batch()

    def _is_crowded(self) -> bool:
        """Return whether many small reads have come, and the batch may wait for more of them.

        Many small reads mean many small writes; a write costs more than a read.
        """
        is_small = self._counters.bytes_received - self._bytes_before < _CROWD_BYTES
        are_many = self._reads - self._reads_seen >= _CROWD_READS
        if not (is_small and are_many) or self._delays >= _CROWD_DELAYS:
            return False
        now_s = perf_counter()
        if not self._delays:
            self._crowd_until_s = now_s + _CROWD_S
        if now_s >= self._crowd_until_s:
            return False
        self._reads_seen = self._reads
        self._delays += 1
        return True

    def _end_batch(self) -> None:
        self._bulk_until_s = 0.0
        self._bulk_bytes = 0
        self._reads_before = self._reads
        self._reads = self._reads_seen = self._delays = 0
        self._bytes_before = self._counters.bytes_received
        self.end()

    def end(self) -> None:
        """Store and write everything handled so far; does nothing after `stop`."""
        if self._is_over:
            return
        if self.on_taken is not None:
            self._call("settling a turn with other nodes", self.on_taken)
        try:
            self._store()
        except OSError as problem:
            self._fail(problem)
            return
        if self._journal is not None and self._journal.syncs:
            self._hold_output()
        else:
            for connection in self.node.take_dirty():
                try:
                    self._write(connection)
                except Exception as error:  # noqa: BLE001 - the others are written to all the same
                    self.node.failures.take("writing to a client", error)
            self._direct.send()
        if self.on_written is not None and self._sync is None:
            self._call("sending to other nodes", self.on_written)
        if self._sampled_s < 0:
            self._sampled_s += 1
        elif self._sync is None:
            self._measure()
        self._ask()
        self._set_alarm()
        self._serve_soon()
        if self._on_end is not None:
            self._call("ending a turn", self._on_end)

    def _call(self, doing: str, action: Callable[[], None]) -> None:
        """Run one step of a batch; if it fails, the steps behind it run all the same."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self.node.failures.take(doing, error)

    def _measure(self) -> None:
        """Record the latency of a batch's deliveries since its first read, one batch in 16."""
        sent = self._counters.publish_sent - self._sent_before
        if self._sampled_s and sent:
            self.latency.add(perf_counter() - self._sampled_s, sent)
            self._sampled_s = -15.0
        else:
            self._sampled_s = 0.0

    def _store(self) -> None:
        journal = self._journal
        if journal is None:
            return
        records = self.node.take_journal()
        if records:
            journal.append(records)
            is_due = self.now_ms >= self._compacts_at_ms
            if is_due and journal.wants_compaction and self._sync is None:  # it has the old file
                self._compact(journal)

    def _compact(self, journal: JournalFile) -> None:
        """Replace the journal's file by a snapshot; if that fails, retry later."""
        try:
            journal.compact(self.node.snapshot())
        except Exception as problem:  # noqa: BLE001 - all is in the old file, which goes on
            self._counters.journal_compactions_failed += 1
            self._compacts_at_ms = self.now_ms + _COMPACTION_PAUSE_MS
            log.error(
                "the journal could not be compacted (%s: %s); %s goes on with %d bytes, and "
                "compaction is tried again in %d s",
                type(problem).__name__,
                problem,
                journal.path,
                journal.size,
                _COMPACTION_PAUSE_MS // 1000,
            )

    def _fail(self, problem: BaseException) -> None:
        """Stop: a message that cannot be stored must not be acknowledged."""
        log.critical("the journal cannot be written: %s", problem)
        self._is_over = True
        if self._on_failure is not None:
            self._on_failure(problem)

    def _write(self, connection: Connection) -> None:
        connection.is_dirty = False
        wire: Wire = connection.transport
        if connection.is_paused and not connection.is_closing:
            return
        outbox = connection.outbox
        if outbox:
            self.node.counters.bytes_sent += connection.outbox_bytes
            connection.outbox = []
            connection.outbox_bytes = connection.answer_bytes = 0
            session = connection.session
            is_direct = connection.descriptor >= 0 and not connection.is_closing
            if is_direct and session is not None and not session.has_more:
                self._direct.add(connection, outbox)
                return
            wire.write(outbox)
        if connection.is_closing:
            wire.finish()
        elif connection.session is not None and connection.session.has_more:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Queue more messages for a client with a backlog of deliveries, for the next batch."""
        if not connection.is_paused:
            self.node.drained(connection, self.clock.now_ms())
            if connection.is_dirty or self._slices.backlog:
                self.schedule()

    def resumed(self, connection: Connection) -> None:
        """Handle that a client reads again."""
        if self._is_over:
            return
        connection.is_paused = False
        self.node.mark_dirty(connection)  # its outbox may not be stored yet
        self.read_on(connection)
        self.schedule()

    # --- durability `power` ---------------------------------------------------------------

    def _hold_output(self) -> None:
        for connection in self.node.take_dirty():
            connection.is_dirty = False
            if connection.is_paused and not connection.is_closing:
                continue
            connection.answer_bytes = 0
            self._held.append((connection, connection.outbox))
            connection.outbox = []
        if self._sync is None and self._held:
            self._begin_sync()

    def _begin_sync(self) -> None:
        assert self._journal is not None
        held, self._held = self._held, []
        self._sync = self._loop.run_in_executor(None, self._journal.sync)
        self._sync.add_done_callback(lambda done: self._synced(done, held))

    def _synced(
        self, done: asyncio.Future[None], held: list[tuple[Connection, list[bytes]]]
    ) -> None:
        self._sync = None
        problem = None if done.cancelled() else done.exception()
        if problem is not None:
            self._fail(problem)
            return
        for connection, chunks in held:
            self._call("writing to a client", partial(self._release, connection, chunks))
        if self.on_written is not None:
            self._call("sending to other nodes", self.on_written)
        if self._sampled_s > 0:
            self._measure()
        if self._held:
            self._begin_sync()

    def _release(self, connection: Connection, chunks: list[bytes]) -> None:
        """Write what a connection was held back until the journal was on disk."""
        wire: Wire = connection.transport
        size = sum(map(len, chunks))
        connection.outbox_bytes -= size
        self.node.counters.bytes_sent += size
        if chunks:
            wire.write(chunks)
        if connection.is_closing and not connection.outbox:
            wire.finish()
        elif connection.session is not None and connection.session.has_more:
            self._go_on(connection)

    # --- time and passwords -------------------------------------------------------------------

    def _set_alarm(self) -> None:
        wake_at = self.node.wake_at()
        if wake_at is None or (self._alarm is not None and self._alarm_ms <= wake_at):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ms = wake_at
        delay_s = max(0, wake_at - self.clock.now_ms()) / 1000
        self._alarm = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self._slice_until_s = 0.0
        self.node.wake(self.clock.now_ms())
        self.end()

    def _ask(self) -> None:
        for connection in self.node.take_questions():
            self.checks.ask(connection)

    def _answer(self, connection: Connection, login: Login) -> None:
        if connection.connect is None:  # it has closed
            return
        if login.reason:
            connection.loss = login.reason  # for the log alone
        verdict = self._settle(connection, login)
        self.node.authenticated(connection, verdict, self.clock.now_ms())
        self.schedule()

    def stop(self) -> None:
        """Run no further batch: reads from now on are not answered."""
        self._is_over = True
        if self._alarm is not None:
            self._alarm.cancel()
        self.checks.stop()


def _nobody_is_welcome(_connection: Connection) -> Login:
    return Login(LoginVerdict.WRONG_PASSWORD)
