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
FEED = "#feed"
"""The name of the change feed's session among those of peers; no node may have it."""
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
        "followers",
        "held_bytes",
        "in_flight",
        "incoming",
        "is_durable",
        "is_over",
        "is_peer",
        "is_pumped",
        "last_packet_id",
        "link",
        "mark",
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
        self.client_id = client_id
        self.number = number  # its name in the journal
        self.user_name: str | None = None  # the proven name of its client
        self.came_ms = 0  # when its client connected last; 0: unknown
        self.link: Connection | None = None  # None while the client is not connected
        self.version = 4  # the protocol level of the last connection
        self.was_plain = True  # `is_plain` of the last connection; True if there was none
        self.subscriptions: dict[str, SessionSubscription] = {}  # by `text`
        self.in_flight: dict[int, Message] = {}  # sent and not acknowledged, in the order sent
        self.exact: set[int] = set()  # the identifiers in `in_flight` that are QoS 2
        self.released: dict[int, None] = {}  # PUBREC received, PUBCOMP not yet
        self.resends: deque[int] = deque()  # of both, still to be resent to a client that is back
        self.incoming: set[int] = set()  # QoS 2 identifiers that the client has yet to release
        self.queue: deque[tuple[Message, int]] = deque()  # message, QoS with flags
        # By subscription: retained messages still to be sent (None: a step that found nothing).
        self.copies: dict[str, Iterator[Message | None]] = {}
        self.held_bytes = 0  # the size of `queue` and `in_flight`
        self.window = 65_535  # Receive Maximum of the client, within our own limit
        self.last_packet_id = 0  # the identifier used last
        self.expiry_s = 0  # session expiry interval; 0: the session ends with the connection
        self.is_durable = False  # it is journaled
        self.is_over = False  # it has ended; its subscriptions are being removed
        self.is_peer = False  # it is a `PeerSession`
        self.is_pumped = False  # its queue is being sent, now or in a later slice
        self.ends_at_ms = 0  # when it expires; 0 while connected
        self.will: WillMessage | None = None
        self.will_at_ms = 0  # when the will is due; 0 while connected or without a will
        self.expiry_timer: Timer | None = None
        self.will_timer: Timer | None = None
        self.dropped = 0  # messages dropped for this session
        self.mark = 0  # the last message of a space in its outbox, see `Delivery.append_once`
        self.position: tuple[float, float] | None = None  # longitude, latitude
        self.position_kept_ms = 0  # when `position` was journaled last
        self.followers: dict[int, SessionSubscription] = {}  # `$near`: they move with `position`

    @property
    def owner(self) -> str | None:
        """What the journal keeps of the session's owner: the proven name."""
        return self.user_name

    @owner.setter
    def owner(self, text: str | None) -> None:
        self.user_name = text

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


class PeerSession(Session):
    """The session of a node of the cluster, or of the change feed: it never expires.

    A generation identifies the state of one side's session for the other. A changed one says that
    the state was lost.
    """

    __slots__ = ("our_generation", "peer_generation")

    def __init__(self, client_id: str, number: int) -> None:
        super().__init__(client_id, number)
        self.is_peer = True
        self.our_generation = ""  # of this session
        self.peer_generation = ""  # of the peer's session for this node, when it last connected

    @property
    def node_name(self) -> str:
        """The name of the node."""
        return self.client_id.removeprefix(PEER_PREFIX)

    @property
    def is_node(self) -> bool:
        """Whether it is the session of a node, not of the change feed."""
        return self.node_name != FEED

    @property
    def owner(self) -> str | None:
        """What the journal keeps of the peer: both generations."""
        return f"{self.our_generation}/{self.peer_generation}"

    @owner.setter
    def owner(self, text: str | None) -> None:
        self.our_generation, _, self.peer_generation = (text or "").partition("/")


def new_session(client_id: str, number: int) -> Session:
    """Return a session of the class that its client identifier asks for."""
    kind = PeerSession if client_id.startswith(PEER_PREFIX) else Session
    return kind(client_id, number)
