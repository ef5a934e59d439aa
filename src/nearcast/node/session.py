"""A client's session: what outlives its connection (section 4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.model import Subscription as Selection
from nearcast.node.message import Message
from nearcast.node.timers import Timer

if TYPE_CHECKING:
    from nearcast.node.connection import Connection

PEER_PREFIX = "$node/"
"""What the client identifiers of other nodes begin with; clients may not call themselves so."""
RETAINED = 0x10  # marks a queue entry as a retained message for a newcomer


class Subscription:
    """One filter of one session, with its options and, in a space, what of it is wanted.

    `text` is its identity: as the client wrote it, or with a selection its canonical form.
    `number` counts up over all sessions: it is the key in the matcher, and its order is age.
    `inside` has the retained messages that a `$near` subscription is in range of. Of another node's
    share group, `members` is how many are connected there.
    """

    __slots__ = (
        "crosses",
        "explain",
        "group",
        "identifier",
        "inside",
        "is_plain",
        "label",
        "members",
        "no_local",
        "number",
        "qos",
        "retain_as_published",
        "selection",
        "session",
        "text",
        "topic_filter",
        "weight",
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
        self.text = text  # a share prefix included
        self.group = group
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier
        self.members = 1
        self.number = 0
        self.selection: Selection | None = None
        self.explain = False
        self.label: str | None = None
        self.weight = 1.0
        self.crosses = True  # whether coming near a retained message delivers it
        self.inside: dict[str, int] | None = None
        # Whether every message goes out as it is.
        self.is_plain = not (no_local or retain_as_published or identifier)

    @property
    def is_ready(self) -> bool:
        """Say whether somebody is connected and reads."""
        link = self.session.link
        return link is not None and not link.is_paused and self.members > 0

    @property
    def has_place(self) -> bool:
        """Say whether it selects by place: by an area, or by where its client is."""
        selection = self.selection
        return selection is not None and not (selection.area is None and selection.near_m is None)

    def select(
        self,
        selection: Selection | None,
        *,
        explain: bool = False,
        label: str | None = None,
        weight: float = 1.0,
    ) -> None:
        """Say what of the filter is wanted, and how it is to be told; before it takes effect."""
        self.selection = selection
        self.explain = explain
        self.label = label
        self.weight = weight
        self.is_plain = self.is_plain and not explain
        if selection is not None and selection.near_m is not None:
            self.inside = {}


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
    not. `incoming` has the QoS 2 identifiers that the client has yet to release. `followers` are
    the `$near` subscriptions, which go where `position` is. `copies` has the retained
    messages that subscriptions are still to be sent (None: a step that found nothing).
    """

    __slots__ = (
        "came_ms",
        "client_id",
        "copies",
        "dropped",
        "ends_at_ms",
        "exact",
        "expiry_s",
        "expiry_timer",
        "followers",
        "held_bytes",
        "in_flight",
        "incoming",
        "is_durable",
        "is_over",
        "is_peer",
        "last_packet_id",
        "link",
        "mark",
        "number",
        "position",
        "position_kept_ms",
        "queue",
        "released",
        "subscriptions",
        "user_name",
        "version",
        "was_plain",
        "will",
        "will_at_ms",
        "will_timer",
        "window",
    )

    def __init__(self, client_id: str, number: int) -> None:
        self.client_id = client_id
        self.number = number
        self.user_name: str | None = None
        self.came_ms = 0  # when its client came last; 0: nobody knows
        self.link: Connection | None = None
        self.version = 4
        self.was_plain = True  # the last connection, or there was none
        self.subscriptions: dict[str, Subscription] = {}
        self.in_flight: dict[int, Message] = {}
        self.exact: set[int] = set()
        self.released: dict[int, None] = {}
        self.incoming: set[int] = set()
        self.queue: deque[tuple[Message, int]] = deque()
        self.copies: dict[str, Iterator[Message | None]] = {}
        self.held_bytes = 0
        self.window = 65_535
        self.last_packet_id = 0
        self.expiry_s = 0
        self.is_durable = False
        self.is_over = False  # it ends; its subscriptions are being removed
        self.is_peer = False  # another node
        self.ends_at_ms = 0
        self.will: WillMessage | None = None
        self.will_at_ms = 0
        self.expiry_timer: Timer | None = None
        self.will_timer: Timer | None = None
        self.dropped = 0
        self.mark = 0  # the last message of a space that was put into its outbox
        self.position: tuple[float, float] | None = None  # longitude, latitude
        self.position_kept_ms = 0  # when the journal was told last
        self.followers: dict[int, Subscription] = {}

    @property
    def has_more(self) -> bool:
        """Say whether something waits until the client has read and answered what it has."""
        return bool(self.queue or self.copies)

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
