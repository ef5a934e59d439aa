"""A client's session: the state that outlives its connection (MQTT 5, section 4.1).

Read next: `connect.py` (how a session begins), `lifecycle.py` (how it ends).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final

from nearcast.broker.publish.message import Message
from nearcast.broker.timers import Timer
from nearcast.model import Subscription as Selection

if TYPE_CHECKING:
    from nearcast.broker.session.connection import Connection

PEER_PREFIX: Final = "$node/"
"""The client identifiers of peers begin with this; the broker refuses it in a CONNECT."""
BRIDGE_PREFIX: Final = "$bridge/"
"""The client identifiers of bridges begin with this; the broker refuses it in a CONNECT, too."""
FEED: Final = "#feed"
"""The name of the change feed's session among those of peers; no node may have it."""
RETAINED: Final = 0x10  # flag of a queue entry: a retained message for a new subscription


@dataclass(slots=True, eq=False, repr=False)
class SessionSubscription:
    """One topic filter of one session, with its options and, in a space, its conditions."""

    session: Session
    text: str  # its identity: as written by the client; canonical with a selection
    group: str  # the share name; "" if not shared
    topic_filter: str  # without share and condition prefixes
    qos: int  # the granted QoS
    _: KW_ONLY
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0  # Subscription Identifier; 0: none
    members: int = 1  # of a peer's share group: how many members are connected there
    number: int = 0  # its birth number, unique over all sessions, and its key in the matcher
    selection: Selection | None = None  # the conditions of a content subscription
    explain: bool = False  # the subscriber wants to know why each message matched
    label: str | None = None  # the subscriber's name for it, in explanations
    weight: float = 1.0  # for the rank `weight`
    shares_m: float | None = None  # publishers may learn its distance, in such steps
    crosses: bool = True  # whether range entry delivers a retained message
    inside: dict[str, int] | None = None  # `$near`: topic to version of those in range
    is_plain: bool = True  # every message goes out unchanged

    def __post_init__(self) -> None:
        self.is_plain = not (self.no_local or self.retain_as_published or self.identifier)

    @property
    def is_ready(self) -> bool:
        """Return whether the subscriber is connected and reads."""
        link = self.session.link
        return link is not None and not link.is_paused and self.members > 0

    @property
    def is_near(self) -> bool:
        """Return whether it selects by the position of its client."""
        return self.selection is not None and self.selection.near_m is not None

    @property
    def is_shown(self) -> bool:
        """Return whether its client lets publishers learn of it, though it is `$near`."""
        return self.is_near and self.label is not None and self.shares_m is not None

    @property
    def is_in_effect(self) -> bool:
        """Return whether it has not been removed or replaced."""
        return self.session.subscriptions.get(self.text) is self

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
        shares_m: float | None = None,
    ) -> None:
        """Set the conditions and how matches are reported; only before it takes effect."""
        self.selection = selection
        self.explain = explain
        self.label = label
        self.weight = weight
        self.shares_m = shares_m
        self.is_plain = self.is_plain and not explain
        if selection is not None and selection.near_m is not None:
            self.inside = {}


@dataclass(slots=True)
class WillMessage:
    """A will: the message, its delay after the disconnect, its expiry in seconds (-1: none)."""

    message: Message
    delay_s: int
    expiry_s: int


@dataclass(slots=True, eq=False, repr=False, init=False)
class Session:
    """Subscriptions, messages in flight in both directions, and queued messages."""

    # Each block says who writes its attributes, and when; `persistence/replay.py` restores all
    # that is journaled, and nothing else writes them.

    # Written once, where a session begins: `connect.py`, `peers/sessions.py`, `replay.py`.
    client_id: str  # unique among the sessions of a node
    number: int  # its name in the journal
    is_peer: bool  # it is a `PeerSession`

    # Written by `connect.py` at every CONNECT, by `peers/sessions.py` when a peer is attached;
    # `user_name` and `rules` by `../rechecks.py` as well.
    user_name: str | None  # the proven name of its owner
    rules: int  # the rules that it was checked under last, as `BrokerState.rules` counts them
    came_ms: int  # when its client connected last; 0: unknown
    is_onlooker: bool  # an operator's page: no `$top` chooses it, it is in no share group
    version: int  # the protocol level of the last connection
    was_plain: bool  # `is_plain` of the last connection; True if there was none
    window: int  # Receive Maximum of the client, within our own limit
    expiry_s: int  # session expiry interval, also from DISCONNECT; 0: ends with its link
    is_durable: bool  # it is journaled; False again once it ends (`lifecycle.py`)

    # Written by `connect.py` and `peers/sessions.py`; back to None by `lifecycle.py`, `detach`.
    link: Connection | None  # its connection; None while it has none

    # Written by `subscribe/handler.py`, of a peer by `peers/sessions.py`; emptied at the end.
    subscriptions: dict[str, SessionSubscription]  # by `text`
    # By subscription: retained messages still to be sent (None: a step that found nothing);
    # `publish/session_queues.py` takes them.
    copies: dict[str, Iterator[Message | None]]

    # Written by `publish/session_queues.py` for every message at QoS 1 or 2, and every ack.
    # Sent and not acknowledged, in the order sent.
    in_flight: dict[int, Message]
    exact: set[int]  # the identifiers in `in_flight` that are QoS 2
    released: dict[int, None]  # PUBREC received, PUBCOMP not yet
    # Of both, still to be resent to a client that is back, the first last: a deque is ten times
    # as large, and most sessions resend nothing.
    resends: list[int]
    queue: deque[tuple[Message, int]]  # message, QoS with flags
    held_bytes: int  # the size of `queue` and `in_flight`
    last_packet_id: int  # the identifier used last
    is_pumped: bool  # its queue is being sent, now or in a later slice

    # Written by `publish/acks.py`: on a QoS 2 PUBLISH of the client, and on its PUBREL.
    # QoS 2 identifiers that the client has yet to release.
    incoming: set[int]

    # Written by `publish/delivery.py` for every message of a space that it gets at QoS 0.
    last_appended: int  # the number of the last one: a client with two matches gets one

    # Written by `lifecycle.py` when the connection ends and when timers run; the will and its
    # end by `connect.py` as well.
    ends_at_ms: int  # when it expires; 0 while connected
    will: WillMessage | None  # published unless the client disconnects in time
    will_at_ms: int  # when the will is due; 0 while connected or without a will
    expiry_timer: Timer | None  # fires at `ends_at_ms`
    will_timer: Timer | None  # fires at `will_at_ms`
    is_over: bool  # it has ended; its subscriptions are being removed

    # Written by `content/positions.py` and `content/subscriptions.py`: on each new position,
    # `moving` on SUBSCRIBE and UNSUBSCRIBE.
    position: tuple[float, float] | None  # longitude, latitude
    position_kept_ms: int  # when `position` was journaled last
    # `$near`: they move with `position`.
    moving: dict[int, SessionSubscription]

    def __init__(self, client_id: str, number: int) -> None:
        # Written out: compiled, this is many times faster than what `dataclass` makes.
        self.client_id = client_id
        self.number = number
        self.is_peer = False
        self.user_name = None
        self.rules = 0
        self.came_ms = 0
        self.is_onlooker = False
        self.version = 4
        self.was_plain = True
        self.window = 65_535
        self.expiry_s = 0
        self.is_durable = False
        self.link = None
        self.subscriptions = {}
        self.copies = {}
        self.in_flight = {}
        self.exact = set()
        self.released = {}
        self.resends = []
        self.queue = deque()
        self.held_bytes = 0
        self.last_packet_id = 0
        self.is_pumped = False
        self.incoming = set()
        self.last_appended = 0
        self.ends_at_ms = 0
        self.will = None
        self.will_at_ms = 0
        self.expiry_timer = None
        self.will_timer = None
        self.is_over = False
        self.position = None
        self.position_kept_ms = 0
        self.moving = {}

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
