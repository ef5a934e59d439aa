"""The feed into Kafka: a broker copies its clients' publications to a topic.

    session "#feed" ──► KafkaSender ──► client for Kafka, in C, with threads of its own
           ▲                                   │ acknowledged by Kafka
           └──── the event loop ◄── thread ◄───┘

A record has the MQTT topic as its key, so that messages of one topic stay in order, the payload as
its value, and the user properties as headers. A header `nearcast-id` identifies a message of QoS 1
or 2 over all attempts to send it. At least once: what Kafka has not acknowledged is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nearcast.broker import Broker
from nearcast.broker.session.session import FEED
from nearcast.config import Configuration
from nearcast.config.kafka_address import KafkaAddress
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Publish
from nearcast.server.feed.session import FeedSession, FeedTap, SilentLog, numbers_path

if TYPE_CHECKING:
    from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.kafka")

IDENTITY = "nearcast-id"
RETRY_S = 2.0
_ANSWER_S = 5.0
_POLL_S = 0.1
_OPTIONS: dict[str, Any] = {
    "client.id": "nearcast",
    "enable.idempotence": True,
    "message.timeout.ms": 30_000,
    "linger.ms": 5,
    "log_level": 0,
}


class KafkaSender(FeedSession):
    """Sends the messages of the feed's session to Kafka; `run` continues until it is cancelled."""

    def __init__(
        self, address: KafkaAddress, node: Broker, turns: LoopBatches, configuration: Configuration
    ) -> None:
        super().__init__(node, turns, numbers_path(configuration))
        self._address = address
        self._attempt = 0
        # (attempt, message, error) that Kafka has answered; filled by the thread
        self._answered: deque[tuple[int, Publish, Any]] = deque()

    def forget_sent(self) -> None:
        """Forget what was sent over the last connection: its answers no longer count."""
        self._attempt += 1

    async def run(self) -> None:
        """Send the feed until cancelled."""
        while True:
            try:
                await self._carry()
            except EnvironmentProblem as problem:
                self._tell(str(problem))
            await asyncio.sleep(RETRY_S)

    async def _carry(self) -> None:
        """Send over one client of Kafka, until it fails."""
        from confluent_kafka import KafkaException, Producer

        try:
            producer = Producer(_OPTIONS | self._address.native_options())
            await asyncio.to_thread(producer.list_topics, self._address.topic, _ANSWER_S)
        except KafkaException as problem:
            raise _problem(problem.args[0], self._address) from None
        ends = threading.Event()
        thread = threading.Thread(
            target=self._poll, args=(producer, ends, asyncio.get_running_loop()), daemon=True
        )
        thread.start()
        self._attach()
        try:
            while True:
                self._send_waiting(producer)
                if self._failure is not None:
                    raise self._failure
                self._ready.clear()
                if not self._waiting:
                    await self._ready.wait()
                else:
                    await asyncio.sleep(_POLL_S)  # the client's own queue is full
        finally:
            self._detach()
            ends.set()

    def _send_waiting(self, producer: Any) -> None:
        while self._waiting and self._failure is None:
            message = self._waiting[0]
            number = self._numbers.assign(message)
            headers = [(name, text.encode()) for name, text in message.properties.user_properties]
            told = None
            if message.qos:
                headers.append((IDENTITY, f"{self._numbers.epoch}-{number}".encode()))
                told = partial(self._note, self._attempt, message)
            try:
                producer.produce(
                    self._address.topic,
                    message.payload,
                    message.topic.encode(),
                    headers=headers,
                    timestamp=self._turns.clock.now_ms(),
                    on_delivery=told,
                )
            except BufferError:
                if message.qos:
                    return
                self.counts.dropped += 1
            except Exception as problem:  # noqa: BLE001 - of the client: too large, for example
                self._refused(message, problem)
            self._waiting.popleft()

    def _refused(self, message: Publish, problem: Exception) -> None:
        """Drop a message that Kafka never takes; it would hold up all others."""
        error = problem.args[0] if problem.args else problem
        if getattr(error, "name", lambda: "")() == "MSG_SIZE_TOO_LARGE":
            self._drop_too_large(message)
        else:
            self._failure = _problem(error, self._address)

    # --- answers, from the client's thread ------------------------------------------------------

    def _poll(self, producer: Any, ends: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        while not ends.is_set():
            producer.poll(_POLL_S)
            if self._answered:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._take_answers)

    def _note(self, attempt: int, message: Publish, error: Any, _record: Any) -> None:
        self._answered.append((attempt, message, error))

    def _take_answers(self) -> None:
        while self._answered:
            attempt, message, error = self._answered.popleft()
            if attempt != self._attempt:
                continue
            if error is None:
                self._stored(message)
            elif error.name() == "MSG_SIZE_TOO_LARGE":
                self._drop_too_large(message)
            else:
                self._failure = _problem(error, self._address)
                self._ready.set()


def begin_kafka(
    configuration: Configuration, node: Broker, turns: LoopBatches
) -> KafkaSender | None:
    """Return the sender of a node's feed into Kafka, or None without one.

    A node without any feed ends the session of a former one.
    """
    section = configuration.feed
    if section.kafka is None:
        if not configuration.network.feed:
            node.peering.forget(FEED, turns.clock.now_ms())
        return None
    if find_spec("confluent_kafka") is None:
        raise EnvironmentProblem(
            "confluent-kafka is not installed",
            where="[feed] kafka",
            todo="Install: pip install 'nearcast[kafka]'",
        )
    node.feed_with(FeedTap(node, section.topics), SilentLog())  # type: ignore[arg-type]
    return KafkaSender(section.address(), node, turns, configuration)


def _problem(error: Any, address: KafkaAddress) -> EnvironmentProblem:
    told = error.str() if hasattr(error, "str") else str(error)
    return EnvironmentProblem(f"Kafka does not take messages ({told})", where=address.place)
