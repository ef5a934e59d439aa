"""From a broker to the spool: a thread with a persistent session that acknowledges after the sync.

    broker ──QoS 1──► buffer ──append, sync──► spool ──► acknowledged ──► ping answered: settled

If the connection or this process dies, the broker resends the messages that it has no
acknowledgement of. `Repeats` distinguishes them from new ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from nearcast.model import FileFormatError, MisuseError
from nearcast.model.errors import NearcastError, PeerProtocolError
from nearcast.mqtt import FilterRequest, Publish
from nearcast.pipeline.streaming.addresses import LiveAddress
from nearcast.pipeline.streaming.mqtt_connection import MqttConnection
from nearcast.pipeline.streaming.spool import Spooled, SpoolWriter

log = logging.getLogger("nearcast.pipeline")

SPOOL_BYTES = 4 << 30
SESSION_EXPIRY_S = 7 * 86_400
_RETRY_S = 1.0
_WAIT_S = 0.25
_MOST_BUFFERED = 1_024
_LONGEST_BUFFERED_S = 0.02


class Repeats:
    """Distinguishes a resent message from a new one.

    A message is a repeat if it has the DUP flag, and the last message with its packet identifier is
    on disk, equal in every byte, and not settled.

    Not distinguished: a new message equal in every byte to the one that had the same identifier
    before, if the broker had processed the acknowledgement of that one, and the connection broke
    before this message arrived and before a ping was answered. It is then taken for the repeat.
    """

    def __init__(self, unsettled: Iterable[Spooled], first: int) -> None:
        self._last: dict[int, tuple[int, bytes]] = {}  # packet id → (number, digest)
        self.wrote(unsettled, first)

    def is_repeat(self, message: Spooled, *, may_be: bool) -> bool:
        """Return whether a message is already on disk; `may_be` is its DUP flag."""
        if not may_be or not message.packet_id:
            return False
        known = self._last.get(message.packet_id)
        return known is not None and known[1] == _digest(message)

    def wrote(self, messages: Iterable[Spooled], first: int) -> None:
        """Record messages that were written to disk, numbered from `first`."""
        for number, one in enumerate(messages, first):
            if one.packet_id:
                self._last[one.packet_id] = (number, _digest(one))

    def settle(self, below: int) -> None:
        """Forget messages below a number, which cannot come again."""
        self._last = {key: one for key, one in self._last.items() if one[0] >= below}

    def forget(self) -> None:
        """Forget all messages: the broker has begun a new session."""
        self._last.clear()


def _digest(message: Spooled) -> bytes:
    text = json.dumps([message.topic, message.pairs]).encode()
    return hashlib.blake2b(text + b"\0" + message.payload, digest_size=16).digest()


class Collector:
    """Fills a spool from a broker until it is stopped.

    `start` connects and subscribes, and raises on failure. After that a lost connection is
    reopened, however long that takes; a fatal error, such as a full disk, is in `problem`.
    """

    def __init__(
        self, address: LiveAddress, topic_filter: str, folder: Path, most_bytes: int = SPOOL_BYTES
    ) -> None:
        self._address = address
        self._filter = topic_filter
        self._most_bytes = most_bytes
        self._spool = SpoolWriter(folder)
        try:
            self._client_id, self._was_seen = identity(folder, topic_filter)
        except NearcastError:
            self._spool.close()
            raise
        self._folder = folder
        unsettled = self._spool.unsettled()
        self._repeats = Repeats(unsettled, self._spool.end - len(unsettled))
        self._buffer: list[Spooled] = []  # received, not yet on disk
        self._answers: list[int] = []  # packet ids to acknowledge after the next sync
        self._buffered_s = 0.0
        self._heard_s = time.monotonic()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nearcast-collector", daemon=True)
        self._connection: MqttConnection | None = None
        self.problem: BaseException | None = None  # the error that ended the thread
        self.repeated = 0  # resent messages that were recognised

    def start(self) -> None:
        """Connect, subscribe, and start the collecting thread."""
        try:
            self._connect()
        except BaseException:
            self._spool.close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the session stays at the broker, which queues messages meanwhile."""
        self._ends.set()
        self._thread.join()
        self._spool.close()

    def wait_until_quiet(self, quiet_s: float, longest_s: float) -> None:
        """Wait until no message has arrived for `quiet_s`, at most `longest_s`."""
        until = time.monotonic() + longest_s
        while self.problem is None and time.monotonic() < min(until, self._heard_s + quiet_s):
            time.sleep(0.02)

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        told = ""
        while not self._ends.is_set():
            try:
                if self._connection is None:
                    self._connect()
                    if told:
                        log.warning("reconnected to %s", self._address.place)
                told = ""
                self._collect()
            except NearcastError as problem:
                if str(problem) != told:
                    log.warning(
                        "no messages are collected: %s. Trying again.", str(problem).rstrip(".")
                    )
                told = str(problem)
                self._disconnect()
                self._ends.wait(_RETRY_S)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the stream must end
                self.problem = problem
                self._disconnect()
                return
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> None:
        connection = MqttConnection(
            self._address, self._client_id, session_expiry_s=SESSION_EXPIRY_S
        )
        try:
            # Only messages published from now on: no retained ones.
            request = FilterRequest(self._filter, 1, retain_as_published=True, retain_handling=2)
            connection.subscribe(request)
        except PeerProtocolError as problem:
            connection.drop()
            raise MisuseError(problem.found, where=self._address.place) from None
        except NearcastError:
            connection.drop()
            raise
        if not connection.is_resumed:
            self._repeats.forget()
            if self._was_seen:
                log.warning(
                    "the broker at %s has no session of this stream any more: what was published"
                    " while it was away is lost",
                    self._address.place,
                )
        if not self._was_seen:
            remember(self._folder, self._client_id, self._filter, was_seen=True)
            self._was_seen = True
        self._connection = connection
        self._heard_s = time.monotonic()

    def _disconnect(self) -> None:
        """Close the connection and drop unwritten messages.

        They are not acknowledged and will be resent.
        """
        if self._connection is not None:
            self._connection.drop()
        self._connection = None
        self._buffer.clear()
        self._answers.clear()

    def _collect(self) -> None:
        assert self._connection is not None
        while not self._ends.is_set():
            packets = self._connection.read_for(0.0 if self._buffer else _WAIT_S)
            for packet in packets:
                if isinstance(packet, Publish):
                    self._take(packet)
            self._settle(self._connection.answered)
            if self._answers or self._buffer:
                self._flush_if_due(is_idle=not packets)

    def _take(self, packet: Publish) -> None:
        self._heard_s = time.monotonic()
        message = Spooled(
            packet.topic,
            packet.payload,
            packet.properties.user_properties,
            packet.packet_id,
            int(time.time() * 1000),
        )
        if packet.packet_id:
            self._answers.append(packet.packet_id)
        if self._repeats.is_repeat(message, may_be=packet.duplicate):
            self.repeated += 1
            return
        if not self._buffer:
            self._buffered_s = self._heard_s
        self._buffer.append(message)

    def _flush_if_due(self, *, is_idle: bool) -> None:
        is_old = time.monotonic() - self._buffered_s > _LONGEST_BUFFERED_S
        if not (is_idle or is_old or len(self._buffer) >= _MOST_BUFFERED):
            return
        if self._spool.size_bytes >= self._most_bytes:
            self._hold_back()
            return
        first = self._spool.append(self._buffer)
        self._repeats.wrote(self._buffer, first)
        answers, self._answers, self._buffer = self._answers, [], []
        if answers:
            assert self._connection is not None
            self._connection.acknowledge(answers)
            self._connection.ping(self._spool.end)

    def _hold_back(self) -> None:
        """Stop acknowledging, so that the broker stops sending; drop buffered QoS 0 messages."""
        self._buffer = [one for one in self._buffer if one.packet_id]
        time.sleep(_WAIT_S)

    def _settle(self, below: int) -> None:
        """Record that the broker has processed the acknowledgements of messages below a number."""
        if below > self._spool.settled:
            self._spool.settle(below)
            self._repeats.settle(below)


# --- the identity of a spool ----------------------------------------------------------------------


def identity(folder: Path, topic_filter: str) -> tuple[str, bool]:
    """Return the client identifier of a spool, and whether a broker has seen it."""
    path = folder / "source.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        client_id, before = str(known["client_id"]), str(known["filter"])
        was_seen = bool(known["was_seen"])
    except FileNotFoundError:
        client_id = f"nearcast-stream-{secrets.token_hex(8)}"
        remember(folder, client_id, topic_filter, was_seen=False)
        return client_id, False
    except (ValueError, KeyError, TypeError):
        raise FileFormatError("it is damaged", where=str(path)) from None
    if before != topic_filter:
        raise MisuseError(
            f"the topics {topic_filter!r}",
            where=str(path),
            expected=f"{before!r}, with which this checkpoint was begun",
            todo="Use another --checkpoint for other topics.",
        )
    return client_id, was_seen


def remember(folder: Path, client_id: str, topic_filter: str, *, was_seen: bool) -> None:
    """Save the client identifier, so that the broker's session can be resumed after a crash."""
    draft = folder / "source.new"
    with draft.open("w", encoding="utf-8") as file:
        json.dump({"client_id": client_id, "filter": topic_filter, "was_seen": was_seen}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / "source.json")
