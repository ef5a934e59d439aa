"""The address of a topic in Kafka: `kafka://user:password@host:port,host:port/TOPIC`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from nearcast.model import MisuseError

KAFKA = ("kafka", "kafkas")
_FORM = re.compile(r"(kafkas?)://(?:([^:@/]*):([^@/]*)@)?([^@/]+)/([A-Za-z0-9._-]{1,249})")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_PORT = "9092"
_HIDDEN = re.compile(r"//[^@/]*@")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Servers to begin with, a topic, and how to log in; `kafkas` encrypts."""

    scheme: str
    servers: str
    topic: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """The address as readable text, without user and password."""
        return f"{self.scheme}://{self.servers}/{self.topic}"

    @property
    def protocol(self) -> str:
        """What Kafka's clients call `security.protocol`."""
        transport = "SSL" if self.scheme == "kafkas" else "PLAINTEXT"
        return transport if self.user is None else f"SASL_{transport}"

    def native_options(self) -> dict[str, str]:
        """Return the settings of a client in C or Python."""
        options = {"bootstrap.servers": self.servers, "security.protocol": self.protocol}
        if self.user is not None and self.password is not None:
            options |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return options

    def java_options(self) -> dict[str, str]:
        """Return the settings of a client in Java."""
        options = {"bootstrap.servers": self.servers, "security.protocol": self.protocol}
        if self.user is not None and self.password is not None:
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            login = f"username={_quoted(self.user)} password={_quoted(self.password)}"
            options["sasl.mechanism"] = "PLAIN"
            options["sasl.jaas.config"] = f"{module} required {login};"
        return options


def parse_kafka(text: str, option: str) -> KafkaAddress:
    """Parse an address, or raise MisuseError.

    >>> parse_kafka("kafka://a,b:9093/city", "--source").servers
    'a:9092,b:9093'
    """
    found = _FORM.fullmatch(text)
    hosts = [_HOST.fullmatch(one) for one in found[4].split(",")] if found else []
    if found is None or not all(hosts) or found[5] in {".", ".."}:
        raise MisuseError(
            repr(_HIDDEN.sub("//…@", text)),
            where=option,
            expected="kafka://host:port/TOPIC or kafkas://user:password@host:port/TOPIC",
        )
    servers = ",".join(f"{one[1]}:{one[2] or _PORT}" for one in hosts if one)
    user, password = (None if part is None else unquote(part) for part in found.group(2, 3))
    return KafkaAddress(found[1], servers, found[5], user, password)


def is_kafka(text: str) -> bool:
    """Return whether an address is meant for Kafka."""
    return text.partition("://")[0] in KAFKA


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
