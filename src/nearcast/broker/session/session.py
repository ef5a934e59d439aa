"""A client's session: the state that outlives its connection (MQTT 5, section 4.1).

Read next: `connect.py` (how a session begins), `lifecycle.py` (how it ends).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.broker.publish.message import Message
from nearcast.broker.timers import Timer
from nearcast.model import Subscription as Selection

if TYPE_CHECKING:
    from nearcast.broker.session.connection import Connection

PEER_PREFIX = "$node/"
"""The client identifiers of peers begin with this; the broker refuses it in a CONNECT."""
RETAINED = 0x10  # flag of a queue entry: a retained message for a new subscription


class SessionSubscription:
    """One topic filter of one session, with its options and, in a space, its conditions."""

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
        self.text = text  # its identity: as written by the client; canonical with a selection
        self.group = group  # the share name; "" if not shared
        self.topic_filter = topic_filter  # without share and condition prefixes
        self.qos = qos  # the granted QoS
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # Subscription Identifier; 0: none
        self.members = 1  # of a peer's share group: how many members are connected there
        self.number = 0  # unique over all sessions, key in the matcher; a greater one is younger
        self.selection: Selection | None = None  # the conditions of a content subscription
        self.explain = False  # the subscriber wants to know why each message matched
        self.label: str | None = None  # the subscriber's name for it, in explanations
        self.weight = 1.0  # for the rank `weight`
        self.crosses = True  # whether range entry delivers a retained message
        self.inside: dict[str, int] | None = None  # `$near`: topic to version of those in range
        # Whether every message goes out unchanged.
        self.is_plain = not (no_local or retain_as_published or identifier)

    @property
    def is_ready(self) -> bool:
        """Return whether the subscriber is connected and reads."""
        link = self.session.link
        return link is not None and not link.is_paused and self.members > 0

    @property
    def has_place(self) -> bool:
        """Return whether it selects by place: by an area, or by the position of its client."""
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
        """Set the conditions and how matches are reported; only before it takes effect."""
        self.selection = selection
        self.explain = explain
        self.label = label
        self.weight = weight
        self.is_plain = self.is_plain and not explain
        if selection is not None and selection.near_m is not None:
            self.inside = {}


class WillMessage:
    """A will: the message, its delay after the disconnect, its expiry in seconds (-1: none)."""

    __slots__ = ("delay_s", "expiry_s", "message")

    def __init__(self, message: Message, delay_s: int, expiry_s: int) -> None:
        self.message = message
        self.delay_s = delay_s
        self.expiry_s = expiry_s


class Session:
    """Subscriptions, messages in flight in both directions, and queued messages."""

    __slots__ = (
        "came_ms",
        "client_id",
        "copies",
        "dropped",
        "ends_at_ms",
        "exact",
        "expiry_s",
        "expiry_timer",
        "held_bytes",
        "in_flight",
        "incoming",
        "is_durable",
        "is_over",
        "is_peer",
        "is_pumped",
        "last_appended",
        "last_packet_id",
        "link",
        "moving",
        "number",
        "position",
        "position_kept_ms",
        "queue",
        "released",
        "resends",
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
        # Each block says who writes its attributes, and when; `persistence/replay.py` restores all
        # that is journaled, and nothing else writes them.

        # Written once, where a session begins: `connect.py`, `peers/sessions.py`, `replay.py`.
        self.client_id = client_id  # unique among the sessions of a node
        self.number = number  # its name in the journal
        self.is_peer = False  # the session of another node of the cluster

        # Written by `connect.py` at every CONNECT, by `peers/sessions.py` when a peer is attached.
        self.user_name: str | None = None  # the proven name; of a peer: both generations
        self.came_ms = 0  # when its client connected last; 0: unknown
        self.version = 4  # the protocol level of the last connection
        self.was_plain = True  # `is_plain` of the last connection; True if there was none
        self.window = 65_535  # Receive Maximum of the client, within our own limit
        self.expiry_s = 0  # session expiry interval, also from DISCONNECT; 0: ends with its link
        self.is_durable = False  # it is journaled; False again once it ends (`lifecycle.py`)

        # Written by `connect.py` and `peers/sessions.py`; back to None by `lifecycle.py`, `detach`.
        self.link: Connection | None = None  # its connection; None while it has none

        # Written by `subscribe/handler.py`, of a peer by `peers/sessions.py`; emptied at the end.
        self.subscriptions: dict[str, SessionSubscription] = {}  # by `text`
        # By subscription: retained messages still to be sent (None: a step that found nothing);
        # `publish/session_queues.py` takes them.
        self.copies: dict[str, Iterator[Message | None]] = {}

        # Written by `publish/session_queues.py` for every message at QoS 1 or 2, and every ack.
        self.in_flight: dict[int, Message] = {}  # sent and not acknowledged, in the order sent
        self.exact: set[int] = set()  # the identifiers in `in_flight` that are QoS 2
        self.released: dict[int, None] = {}  # PUBREC received, PUBCOMP not yet
        self.resends: deque[int] = deque()  # of both, still to be resent to a client that is back
        self.queue: deque[tuple[Message, int]] = deque()  # message, QoS with flags
        self.held_bytes = 0  # the size of `queue` and `in_flight`
        self.last_packet_id = 0  # the identifier used last
        self.is_pumped = False  # its queue is being sent, now or in a later slice
        self.dropped = 0  # messages dropped for it so far; at QoS 0 by `publish/delivery.py`

        # Written by `publish/acks.py`: on a QoS 2 PUBLISH of the client, and on its PUBREL.
        self.incoming: set[int] = set()  # QoS 2 identifiers that the client has yet to release

        # Written by `publish/delivery.py` for every message of a space that it gets at QoS 0.
        self.last_appended = 0  # the number of the last one: a client with two matches gets one

        # Written by `lifecycle.py` when the connection ends and when timers run; the will and its
        # end by `connect.py` as well.
        self.ends_at_ms = 0  # when it expires; 0 while connected
        self.will: WillMessage | None = None  # published unless the client disconnects in time
        self.will_at_ms = 0  # when the will is due; 0 while connected or without a will
        self.expiry_timer: Timer | None = None  # fires at `ends_at_ms`
        self.will_timer: Timer | None = None  # fires at `will_at_ms`
        self.is_over = False  # it has ended; its subscriptions are being removed

        # Written by `content/positions.py` and `content/subscriptions.py`: on each new position,
        # `moving` on SUBSCRIBE and UNSUBSCRIBE.
        self.position: tuple[float, float] | None = None  # longitude, latitude
        self.position_kept_ms = 0  # when `position` was journaled last
        self.moving: dict[int, SessionSubscription] = {}  # `$near`: they move with `position`

    @property
    def has_more(self) -> bool:
        """Return whether messages wait until the client has read and acknowledged earlier ones."""
        return bool(self.resends or self.queue or self.copies)

    @property
    def room(self) -> int:
        """How many more messages may be in flight [MQTT-3.3.4-9]."""
        return self.window - len(self.in_flight) - len(self.released)

    def next_packet_id(self) -> int:
        """Return an identifier that is not in use [MQTT-2.2.1-4]; there must be room."""
        candidate = self.last_packet_id
        while True:
            candidate = candidate % 65_535 + 1
            if candidate not in self.in_flight and candidate not in self.released:
                self.last_packet_id = candidate
                return candidate
