"""The section about the feed of a broker into Kafka."""

from __future__ import annotations

from pydantic import field_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.kafka_address import KafkaAddress, parse_kafka
from nearcast.model import MisuseError


class FeedSection(Section):
    """The feed into Kafka: what clients of this node publish, each message as a record.

    The key of a record is its MQTT topic. It needs `pip install 'nearcast[kafka]'`; see
    docs/live-stream.md.
    """

    kafka: str | None = setting(
        None,
        "kafka://host:port/TOPIC; kafkas:// encrypts, kafkas://user:password@host:port/TOPIC",
        example='"kafka://10.0.0.9:9092/city"',
    )
    topics: list[str] = setting(["#"], "the MQTT topics that are copied, as filters")

    @field_validator("kafka")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_kafka(value, "kafka")
            except MisuseError as problem:
                raise ValueError(str(problem)) from None
        return value

    @field_validator("topics")
    @classmethod
    def _are_topic_filters(cls, value: list[str]) -> list[str]:
        return checked_feed_topics(value)

    def address(self) -> KafkaAddress:
        """Return the address; only with `kafka`."""
        assert self.kafka is not None
        return parse_kafka(self.kafka, "kafka")


def checked_feed_topics(value: list[str]) -> list[str]:
    """Return the topic filters of a feed, or raise ValueError."""
    for one in value:
        levels = one.split("/")
        is_bad = "#" in levels[:-1] or any(
            sign in level and level != sign for level in levels for sign in "#+"
        )
        if not one or is_bad or one.startswith("$"):
            msg = f"'{one}' is no topic filter such as 'city/#'"
            raise ValueError(msg)
    return value
