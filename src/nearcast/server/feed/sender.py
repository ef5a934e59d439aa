"""The feed of a cluster: a node copies its clients' publications into a JetStream stream.

A NATS that is full or unreachable fills the queue of the feed's session (`session.py`), then
messages are dropped and counted, which is logged once.

Read next: `session.py`, `numbers.py` (identities); the format is in `nearcast.nats`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from nearcast.broker import Broker
from nearcast.config import Configuration, NetworkSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Publish
from nearcast.nats.connection import NatsConnection, store_answers
from nearcast.nats.feed_messages import (
    VERSION,
    Publication,
    encode_publication,
    feed_subject,
    stream_name,
)
from nearcast.server.cluster.nats_members import key_of
from nearcast.server.feed.session import FeedSession, FeedTap, SilentLog, numbers_path

if TYPE_CHECKING:
    from nearcast.server.cluster.runtime import ClusterRuntime
    from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

DUPLICATES_S = 600.0
RETRY_S = 2.0
_SILENCE_S = 5.0


class FeedSender(FeedSession):
    """Sends the messages of the feed's session to JetStream, while there is a connection.

    `run` continues until it is cancelled, and raises no problem of JetStream.
    """

    def __init__(
        self,
        section: NetworkSection,
        name: str,
        node: Broker,
        turns: LoopBatches,
        path: Path | None,
    ) -> None:
        super().__init__(node, turns, path)
        self._section = section
        self._subject = feed_subject(section.name, key_of(name))
        # not acknowledged, by the last token of the reply subject: message, time sent
        self._pending: dict[int, tuple[Publish, float]] = {}
        self._last_token = 0

    def forget_sent(self) -> None:
        """Forget what was sent over the last connection."""
        self._pending.clear()

    async def run(self, client: NatsConnection) -> None:
        """Send the feed over a connection until cancelled."""
        while True:
            try:
                with store_answers(client, "the stream of the feed"):
                    await self._carry(client)
            except EnvironmentProblem as problem:
                self._tell(str(problem))
            await asyncio.sleep(RETRY_S)

    async def _carry(self, client: NatsConnection) -> None:
        await self._open(client.jetstream(timeout=client.timeout_s))
        inbox = client.new_inbox()
        answers = await client.subscribe(f"{inbox}.*", cb=self._answered)
        self._attach()
        try:
            while True:
                await self._send_waiting(client, inbox)
                if self._failure is not None:
                    raise self._failure
                self._check_silence()
                self._ready.clear()
                if not self._waiting:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ready.wait(), 1.0)
        finally:
            self._detach()
            with contextlib.suppress(NatsError):
                await answers.unsubscribe()

    async def _open(self, stream: JetStreamContext) -> None:
        """Create the stream, or update its limits to this node's configuration."""
        wanted = stream_config(self._section)
        assert wanted.name is not None
        try:
            found = (await stream.stream_info(wanted.name)).config
        except NatsError as problem:
            if getattr(problem, "err_code", None) != _NOT_FOUND:
                raise
            await stream.add_stream(wanted)
            return
        if (found.max_bytes, found.max_age) != (wanted.max_bytes, wanted.max_age):
            await stream.update_stream(wanted)

    async def _send_waiting(self, client: NatsConnection, inbox: str) -> None:
        while self._waiting and self._failure is None:
            message = self._waiting.popleft()
            number = self._numbers.assign(message)
            one = Publication(
                VERSION,
                self._turns.clock.now_ms(),
                self._numbers.epoch,
                number,
                message.topic,
                message.payload,
                message.properties.user_properties,
            )
            try:
                await self._publish(client, inbox, message, one)
            except MaxPayloadError:
                self._drop_too_large(message)

    async def _publish(
        self, client: NatsConnection, inbox: str, message: Publish, one: Publication
    ) -> None:
        """Publish to JetStream, which acknowledges to the inbox; not at QoS 0."""
        data = encode_publication(one)
        if not message.qos:
            await client.publish(self._subject, data)
            return
        self._last_token = token = self._last_token + 1
        headers = {"Nats-Msg-Id": f"{one.epoch}-{one.number}"}
        await client.publish(self._subject, data, f"{inbox}.{token}", headers)
        self._pending[token] = (message, asyncio.get_running_loop().time())

    async def _answered(self, answer: Msg) -> None:
        message, _ = self._pending.pop(int(answer.subject.rpartition(".")[2]), (None, 0.0))
        if message is None:  # of an abandoned attempt
            return
        if answer.data and b'"error"' not in answer.data:
            self._stored(message)
            return
        self._failure = _failure(answer.data)
        self._ready.set()

    def _check_silence(self) -> None:
        oldest = next((at for _, at in self._pending.values()), None)
        if oldest is not None and asyncio.get_running_loop().time() - oldest > _SILENCE_S:
            raise EnvironmentProblem("JetStream does not answer", where="NATS")


_NOT_FOUND = 10059


def stream_config(section: NetworkSection) -> StreamConfig:
    """Return the configuration of a network's stream: the oldest messages are discarded first."""
    return StreamConfig(
        name=stream_name(section.name),
        description="What clients of a Nearcast network publish",
        subjects=[feed_subject(section.name, "*")],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_bytes=section.feed_size,
        max_age=section.feed_age,
        num_replicas=section.replicas,
        duplicate_window=min(DUPLICATES_S, section.feed_age),
    )


def begin_feed(
    configuration: Configuration, network: ClusterRuntime, node: Broker, turns: LoopBatches
) -> None:
    """Start a node's feed into JetStream, if it is configured."""
    section = configuration.network
    if section.feed:
        node.feed_with(FeedTap(node, section.feed), SilentLog())  # type: ignore[arg-type]
        path = numbers_path(configuration)
        network.feed = FeedSender(section, configuration.node.name, node, turns, path)


def _failure(answer: bytes) -> NatsError:
    """Return the error of a JetStream, or of a NATS without it, to a publication."""
    if not answer:
        return NoStreamResponseError()
    problem: NatsError = APIError.from_error(json.loads(answer)["error"])
    return problem
