"""Reads a cluster's feed from JetStream: any range of its sequence numbers, any number of times.

JetStream gives every message a permanent number. A range is read with an ephemeral consumer that
acknowledges nothing, so that reading has no side effect and can be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo

from nearcast.config.schema import NetworkSection
from nearcast.model import FileFormatError, MisuseError
from nearcast.model.errors import EnvironmentProblem
from nearcast.nats.connection import NatsConnection, close, connect, store_answers
from nearcast.nats.feed_messages import decode_publication, feed_subject, stream_name
from nearcast.pipeline.streaming.addresses import LiveAddress
from nearcast.pipeline.streaming.live_events import LiveMessage

_LABEL = "nearcast pipeline stream"
_AT_ONCE = 1_000
_TIMEOUT_S = 5.0
_PATIENCE_S = 60.0
_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """The address of a feed: how to reach NATS, and the name of the network."""

    section: NetworkSection

    @classmethod
    def of(cls, address: LiveAddress, section: NetworkSection) -> FeedAddress:
        """Return the feed at an address.

        Parts that the address omits come from the configuration.
        """
        # Whoever reads a feed joins no network.
        changes: dict[str, object] = {"join": [address.place], "insecure": True}
        if address.path:
            changes["name"] = address.path
        if address.user is not None and address.password is not None:
            changes |= {"user": address.user, "password": address.password}
            changes |= {"token": None, "credentials": None}
        try:
            return cls(NetworkSection.model_validate({**section.model_dump(), **changes}))
        except ValueError:
            raise MisuseError(
                repr(address.path),
                where="--source",
                expected=f"{address.place}/NETWORK, a name of letters, digits, _ and -",
            ) from None

    @classmethod
    def from_text(cls, text: str) -> FeedAddress:
        """Parse the output of `text`."""
        return cls(NetworkSection.model_validate_json(text))

    @property
    def text(self) -> str:
        """The feed as JSON, for an option of a data source."""
        return self.section.model_dump_json()

    @property
    def place(self) -> str:
        """The feed as readable text."""
        return f"{self.section.join[0]}, network {self.section.name}"


class FeedWatch:
    """Reports how far a feed is, over one connection that is reopened when it breaks.

    After the first success, an unreachable NATS means that there is nothing new.
    """

    def __init__(self, feed: FeedAddress) -> None:
        self._feed = feed
        self._runner = asyncio.Runner()
        self._client: NatsConnection | None = None
        self._last: tuple[int, int] | None = None

    def marks(self) -> tuple[int, int]:
        """Return the number of the oldest message, and one more than that of the newest."""
        try:
            state = self._info().state
        except EnvironmentProblem:
            self._lose()
            if self._last is None:
                raise
            return self._last
        self._last = max(1, state.first_seq), state.last_seq + 1
        return self._last

    def identity(self) -> str:
        """Return a text that distinguishes this stream from a recreated one."""
        return f"{stream_name(self._feed.section.name)} of {self._info().created}"

    def close(self) -> None:
        """Close the connection."""
        self._lose()
        self._runner.close()

    def _info(self) -> StreamInfo:
        if self._client is None:
            self._client = self._runner.run(
                connect(self._feed.section, _LABEL, timeout_s=_TIMEOUT_S)
            )
        return self._runner.run(_info(self._client, self._feed))

    def _lose(self) -> None:
        if self._client is not None:
            self._runner.run(close(self._client))
        self._client = None


async def _info(client: NatsConnection, feed: FeedAddress) -> StreamInfo:
    name = stream_name(feed.section.name)
    try:
        with store_answers(client):
            return await client.jetstream(timeout=_TIMEOUT_S).stream_info(name)
    except EnvironmentProblem as problem:
        if "stream not found" in str(problem):
            raise _no_feed(feed) from None
        raise EnvironmentProblem(problem.found, where=feed.place, todo=problem.todo) from None


def read_feed(feed: FeedAddress, start: int, end: int) -> Iterator[list[LiveMessage]]:
    """Yield the messages from `start` up to, not including, `end`, in portions.

    Waits up to a minute for an unreachable NATS. Raises FileFormatError where JetStream has already
    dropped some of the messages.
    """
    with asyncio.Runner() as runner:
        give_up_s = time.monotonic() + _PATIENCE_S
        while start < end:
            client = None
            try:
                client = runner.run(connect(feed.section, _LABEL, timeout_s=_TIMEOUT_S))
                consumer = runner.run(_consumer(client, feed, start))
                while start < end:
                    portion = runner.run(_portion(client, consumer, feed, start, end))
                    yield portion
                    start += len(portion)
                    give_up_s = time.monotonic() + _PATIENCE_S
            except EnvironmentProblem:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_PAUSE_S)
            finally:
                if client is not None:
                    runner.run(close(client))


async def _consumer(
    client: NatsConnection, feed: FeedAddress, start: int
) -> JetStreamContext.PullSubscription:
    name, network = stream_name(feed.section.name), feed.section.name
    configuration = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=start,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=_PATIENCE_S,
        mem_storage=True,
    )
    with store_answers(client):
        stream = client.jetstream(timeout=_TIMEOUT_S)
        return await stream.pull_subscribe(
            feed_subject(network, "*"), stream=name, config=configuration
        )


async def _portion(
    client: NatsConnection,
    consumer: JetStreamContext.PullSubscription,
    feed: FeedAddress,
    start: int,
    end: int,
) -> list[LiveMessage]:
    """Return the next messages of a range, at least one."""
    with store_answers(client):
        found = await consumer.fetch(min(_AT_ONCE, end - start), timeout=_TIMEOUT_S)
    portion: list[LiveMessage] = []
    for message in found:
        number = message.metadata.sequence.stream
        if number != start + len(portion):
            raise FileFormatError(
                f"message {number}",
                where=feed.place,
                expected=f"message {start + len(portion)}: JetStream has dropped some",
                todo="Increase feed_size or feed_age, and start with an empty checkpoint.",
            )
        one = decode_publication(message.data)
        portion.append(LiveMessage(number, one.t_ms, one.topic, one.payload, one.pairs))
    return portion


def _no_feed(feed: FeedAddress) -> MisuseError:
    return MisuseError(
        "there is no feed",
        where=feed.place,
        todo='Nodes create it: set `feed = ["topics/#"]` in their [network].',
    )
