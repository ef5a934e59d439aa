"""A client's session: what outlives its connection (section 4.1)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.node.message import Message

if TYPE_CHECKING:
    from nearcast.node.connection import Connection

RETAINED = 0x10  # marks a queue entry as a retained message for a newcomer


class Subscription:
    """One filter of one session, with its options; `selection` has room for conditions."""

    __slots__ = (
        "group",
        "identifier",
        "no_local",
        "qos",
        "retain_as_published",
        "selection",
        "session",
        "text",
        "topic_filter",
    )

    def __init__(
        self,
        session: Session,
        text: str,
        group: str,
        topic_filter: str,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        self.session = session
        self.text = text  # as the client wrote it, a share prefix included
        self.group = group
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier
        self.selection: object | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every matching message goes out, as it is."""
        return not (
            self.no_local
            or self.retain_as_published
            or self.identifier
            or self.selection is not None
        )


class WillMessage:
    """What is to be published when the client is gone, and how long after."""

    __slots__ = ("delay_s", "expiry_s", "message")

    def __init__(self, message: Message, delay_s: int, expiry_s: int) -> None:
        self.message = message
        self.delay_s = delay_s
        self.expiry_s = expiry_s


class Session:
    """Subscriptions, what is in flight both ways, and what waits.

    `in_flight` maps packet identifiers to messages sent and not yet answered, in the order sent;
    `exact` marks those of QoS 2; `released` those whose PUBREC has come and whose PUBCOMP has
    not. `incoming` has the QoS 2 identifiers that the client has yet to release.
    """

    __slots__ = (
        "client_id",
        "dropped",
        "ends_at_ms",
        "exact",
        "expiry_s",
        "held_bytes",
        "in_flight",
        "incoming",
        "is_durable",
        "last_packet_id",
        "link",
        "number",
        "queue",
        "released",
        "subscriptions",
        "user_name",
        "version",
        "will",
        "will_at_ms",
        "window",
    )

    def __init__(self, client_id: str, number: int) -> None:
        self.client_id = client_id
        self.number = number
        self.user_name: str | None = None
        self.link: Connection | None = None
        self.version = 4
        self.subscriptions: dict[str, Subscription] = {}
        self.in_flight: dict[int, Message] = {}
        self.exact: set[int] = set()
        self.released: dict[int, None] = {}
        self.incoming: set[int] = set()
        self.queue: deque[tuple[Message, int]] = deque()
        self.held_bytes = 0
        self.window = 65_535
        self.last_packet_id = 0
        self.expiry_s = 0
        self.is_durable = False
        self.ends_at_ms = 0
        self.will: WillMessage | None = None
        self.will_at_ms = 0
        self.dropped = 0

    @property
    def room(self) -> int:
        """How many more messages the client lets us have in flight."""
        return self.window - len(self.in_flight) - len(self.released)

    def next_packet_id(self) -> int:
        """Return an identifier that is not in use; there must be room."""
        candidate = self.last_packet_id
        while True:
            candidate = candidate % 65_535 + 1
            if candidate not in self.in_flight and candidate not in self.released:
                self.last_packet_id = candidate
                return candidate
