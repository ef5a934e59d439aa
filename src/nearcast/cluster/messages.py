"""The messages between nodes other than publications, as typed MessagePack.

A message is declared here and nowhere else: its code (`tag`), its fields, the version it came with
(`since`), and in its docstring what it says. Its handler is the method of a `ClusterPart` that
`handles` names; a node without a handler for each message does not start.

Compatibility: new fields go to the end with a default, so that a node of the previous version
ignores them, and a node of the next version can do without them. A message that is newer than the
peer's version is not sent to it. In the docstrings "I" is the sender and "you" the receiver.

Read next: `part.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Union

import msgspec

from nearcast.model.errors import PeerProtocolError


class PeerVersion(IntEnum):
    """The versions of what nodes say to each other, named after what each one added."""

    FIRST = 1
    OLDER_PACKETS = 2
    """MQTT 3.1.1 packets may be forwarded unchanged."""
    MARKS_LAST_RETAINED = 3
    """A node marks the last of the retained messages that it sends when a link comes up."""
    MOVES_SESSIONS = 4
    """A session may move with its client, and a node announces its address and its end."""
    CARRIES_PASTS = 5
    """A client takes its causal past along to the node that it connects to."""
    REPORTS_LOADS = 6
    """A node reports the load of its leaves, so that one node can propose an adapted plan."""
    HAS_BRIDGES = 7
    """Nodes tell bridges what their clients want of an overlay."""
    ASKS_FOR_OPERATORS = 8
    """A node asks the others on behalf of an operator at its page."""


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Introduces the sender; repeated until the peer answers."""

    node: str
    oldest: int
    """With `newest`: the versions of the messages that I understand."""
    newest: int
    spaces: str
    """A digest of the spaces' configuration: nodes with different ones cannot work together."""
    generation: str
    """Of the session that I keep for you; changes when that session is lost."""
    clock_ms: int = 0
    skew_ms: int = 0
    """How far clocks may be apart in causal groups, the same at all nodes; 0: any."""
    wants_retained: bool = False
    """Send me all retained messages: I have not received them from you since I started."""
    client_address: str = ""
    """The host and port that my clients should use; empty: unknown."""


class PeerMessage(msgspec.Struct, array_like=True, frozen=True):
    """The base of all messages; a subclass declares one, and its tag is its code on the wire."""

    since: ClassVar[PeerVersion] = PeerVersion.FIRST
    """The version that the message came with; it is not sent to a peer of an earlier one."""


class Interest(PeerMessage, frozen=True, tag="i"):
    """What my clients subscribe to: filters, each with the number of its share group or 0.

    `whole`: these filters and no others. `ready`: about how many members of a share group are
    connected; a group that is not listed keeps its count, which is 1 at first. Answered with
    `InterestKnown`.
    """

    number: int
    added: list[tuple[str, int]]
    removed: list[str]
    whole: bool = False
    ready: list[tuple[str, int]] = []


class InterestKnown(PeerMessage, frozen=True, tag="k"):
    """From now on I forward messages for your subscriptions up to and including this number."""

    number: int


class RetainedEntry(msgspec.Struct, array_like=True, frozen=True):
    """A topic's retained message, with the time and node of its publication; None: deleted.

    `at_ms` grows with each message of a topic, whatever the clock says; `said_ms` is the clock's
    time, 0 if unknown.
    """

    topic: str
    at_ms: int
    node: str
    message: bytes | None
    said_ms: int = 0


class Retained(PeerMessage, frozen=True, tag="r"):
    """Store these retained messages, unless you have newer ones.

    `is_last`: now you have all that I retained when our link came up.
    """

    kept: list[RetainedEntry]
    is_last: bool = False


class PlansUsed(PeerMessage, frozen=True, tag="p"):
    """The versions of the plans that I use: current and upcoming, 0 for none."""

    current: int
    upcoming: int


class LoadReport(PeerMessage, frozen=True, tag="l"):
    """The load of the leaves that I hold under this plan, in messages a minute, by their keys."""

    since: ClassVar[PeerVersion] = PeerVersion.REPORTS_LOADS

    plan: int
    loads: dict[str, float]


class Ordered(PeerMessage, frozen=True, tag="o"):
    """A message of a causal group, with its causal history; answered with `Settled`."""

    number: int
    group: str
    message: bytes


class Settled(PeerMessage, frozen=True, tag="s"):
    """I have received your message of this number."""

    number: int


class TopKRequest(PeerMessage, frozen=True, tag="c"):
    """Name your best subscriptions for this message, at most `most`; answered with `TopKReply`."""

    number: int
    most: int
    rank: str
    publisher: str
    message: bytes


class TopKCandidate(msgspec.Struct, array_like=True, frozen=True):
    """One candidate: a lower score is better; `number` is its subscription's on its node.

    A share group scores as its best member; if that member is disconnected and another one is named
    here, `own` is the score of the one named.
    """

    score: float
    age: int
    number: int
    client: str
    group: str = ""
    distance_m: float | None = None
    is_away: bool = False
    own: float | None = None


class TopKReply(PeerMessage, frozen=True, tag="b"):
    """My best candidates for your request of this number; behind them, substitutes for groups."""

    number: int
    bids: list[TopKCandidate]


class ClaimSession(PeerMessage, frozen=True, tag="h"):
    """Asks for the session of a client that has connected to me.

    Answered with `SessionClaimed` unless `number` is 0. `clean`: end your session of the client, if
    it last connected to you no later than `last_ms`. `number` below 0: I have fetched it from you.
    `owner`: the user that the client has proven to be, None if it has no name, empty if the sender
    does not say; a session of another user is neither told nor ended.
    """

    number: int
    client_id: str
    clean: bool
    last_ms: int = 1 << 62
    owner: str | None = ""


class SessionClaimed(PeerMessage, frozen=True, tag="H"):
    """When the client of your claim last connected here; or `NOT_HERE`, `COMES_HERE` or `FOREIGN`.

    `may_move`: I have sent the client to you, and you may fetch its session. `pasts`: the causal
    past of a client that was here, as a message of each causal group; deliver it before you
    publish anything for the client.
    """

    number: int
    last_ms: int
    may_move: bool = False
    pasts: list[tuple[str, bytes]] = []


class FetchSession(PeerMessage, frozen=True, tag="f"):
    """Asks for a session that may move, instead of a tunnel; answered with `FetchedSession`."""

    since: ClassVar[PeerVersion] = PeerVersion.MOVES_SESSIONS

    number: int
    client_id: str


class MovedPlaces(msgspec.Struct, array_like=True, frozen=True):
    """What the next gateway of a client needs to deliver what is due and not yet delivered.

    `since` has when each subscription was made, by its text; `places` the client's recent steps
    (instant, longitude, latitude); `seen` the recent events that it had, with their deadlines;
    `seen_to` the last event of each former home, which had served its own events itself.
    """

    since: dict[str, int]
    places: list[tuple[int, float, float]]
    seen: list[tuple[bytes, int]]
    seen_to: dict[str, int]


class FetchedSession(PeerMessage, frozen=True, tag="F"):
    """The session that you fetched, as records of a journal; empty: open a tunnel instead.

    You have it once I get a `ClaimSession` with `clean` from you; until then I keep it, too.
    `asked_ms` is when its client was sent to you.
    """

    since: ClassVar[PeerVersion] = PeerVersion.MOVES_SESSIONS

    number: int
    records: bytes
    places: MovedPlaces
    asked_ms: int = 0


class Draining(PeerMessage, frozen=True, tag="d"):
    """I am about to end: send no more clients to me."""

    since: ClassVar[PeerVersion] = PeerVersion.MOVES_SESSIONS


class TunnelOpened(PeerMessage, frozen=True, tag="t"):
    """A client with a session at your node is connected to me: its CONNECT and its identity."""

    number: int
    connect: bytes
    """The CONNECT packet without its password: I have checked it."""
    user_name: str | None
    address: str
    rules: bytes | None = None
    """What its login brought along (a token, a hook): it may no more at your node. None: none."""


class TunnelClosed(PeerMessage, frozen=True, tag="T"):
    """A tunnel has ended: one that you opened, or (`is_mine`) one that I opened."""

    number: int
    is_mine: bool


class TunnelPaused(PeerMessage, frozen=True, tag="w"):
    """The client at my end of the tunnel has stopped reading, or reads again."""

    number: int
    is_paused: bool


class BridgeHere(PeerMessage, frozen=True, tag="g"):
    """I am a bridge to this overlay of peers: tell me what your clients want."""

    since: ClassVar[PeerVersion] = PeerVersion.HAS_BRIDGES

    federation: str


class ClientBoxesTold(PeerMessage, frozen=True, tag="x"):
    """Boxes around all that my clients want of this space, for a bridge."""

    since: ClassVar[PeerVersion] = PeerVersion.HAS_BRIDGES

    space: str
    boxes: list[tuple[tuple[float, ...], tuple[float, ...]]]


class OperatorQuestion(PeerMessage, frozen=True, tag="q"):
    """Asks your HTTP API something for an operator at mine; answered with `OperatorAnswer`."""

    since: ClassVar[PeerVersion] = PeerVersion.ASKS_FOR_OPERATORS

    number: int
    question: bytes


class OperatorAnswer(PeerMessage, frozen=True, tag="a"):
    """What my HTTP API answers to your question of this number; empty: nothing."""

    since: ClassVar[PeerVersion] = PeerVersion.ASKS_FOR_OPERATORS

    number: int
    answer: bytes


MESSAGES: tuple[type[PeerMessage], ...] = tuple(PeerMessage.__subclasses__())
"""All messages, in the order of their declaration."""
SPEAKS = (int(min(PeerVersion)), int(max(PeerVersion)))
"""The oldest and the newest version that this node understands."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Union[MESSAGES]).decode  # noqa: UP007 - made of a tuple
_decode_greeting = msgspec.msgpack.Decoder(Greeting).decode


def encode(message: PeerMessage | Greeting) -> bytes:
    """Return a message as bytes."""
    return _encode(message)


def decode(data: bytes) -> PeerMessage:
    """Return the message in `data`; invalid bytes are a PeerProtocolError."""
    try:
        message: PeerMessage = _decode(data)
    except msgspec.MsgspecError as problem:
        raise PeerProtocolError(str(problem), where="message between nodes") from None
    return message


def decode_greeting(data: bytes) -> Greeting:
    """Return the greeting in `data`; invalid bytes are a PeerProtocolError."""
    try:
        return _decode_greeting(data)
    except msgspec.MsgspecError as problem:
        raise PeerProtocolError(str(problem), where="greeting of a node") from None
