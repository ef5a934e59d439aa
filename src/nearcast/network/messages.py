"""What nodes tell each other beside publications, as typed MessagePack.

New fields go to the end with a default, so that a node of the version before reads what it knows
and one of the next version does without what it misses.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nearcast.model.errors import PeerProtocolError

SPEAKS = (1, 3)
"""The oldest and the newest version of these messages that this node understands.

2: packets of MQTT 3.1.1 may travel as they are.
3: a node marks the last of the retained messages that it sends when a link comes up.
"""


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Who I am, first of all: sent until the other side answers."""

    node: str
    oldest: int
    newest: int
    spaces: str
    """A digest of the spaces' configuration: nodes with another one cannot work together."""
    generation: str
    """Of the session that I keep for you."""
    clock_ms: int = 0
    skew_ms: int = 0
    """How far clocks may be apart in causal groups, the same for all nodes; 0: no matter."""
    wants_retained: bool = False
    """Send me all retained messages: I have not had them from you since I started."""


class Interest(msgspec.Struct, array_like=True, frozen=True, tag="i"):
    """What my clients want: filters, each with the number of its share group or 0.

    `whole`: these and no others. `ready`: of share groups, about how many members are connected;
    where nothing is said of one, as before, and at first one. Answered with `InterestKnown`.
    """

    number: int
    added: list[tuple[str, int]]
    removed: list[str]
    whole: bool = False
    ready: list[tuple[str, int]] = []


class InterestKnown(msgspec.Struct, array_like=True, frozen=True, tag="k"):
    """From now on you get what you want, up to and with this number of yours."""

    number: int


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """A topic's last message, and when and where it was published; None: forgotten.

    `at_ms` grows with each message of a topic, whatever the clock says; `said_ms` is the clock's, 0
    if it is not known any more.
    """

    topic: str
    at_ms: int
    node: str
    message: bytes | None
    said_ms: int = 0


class Retained(msgspec.Struct, array_like=True, frozen=True, tag="r"):
    """Keep these too, as far as you have nothing newer.

    `is_last`: with these you have all that I kept when our link came up.
    """

    kept: list[Kept]
    is_last: bool = False


class PlansUsed(msgspec.Struct, array_like=True, frozen=True, tag="p"):
    """The versions of the plan that I use: the current one and the next, 0 for none."""

    current: int
    upcoming: int


class Ordered(msgspec.Struct, array_like=True, frozen=True, tag="o"):
    """A message of a causal group, with what it tells about its past; answered with `Settled`."""

    number: int
    group: str
    message: bytes


class Settled(msgspec.Struct, array_like=True, frozen=True, tag="s"):
    """I have your message of this number."""

    number: int


class Contest(msgspec.Struct, array_like=True, frozen=True, tag="c"):
    """Who are your best for this message, at most so many? Answered with `Bids`."""

    number: int
    most: int
    rank: str
    publisher: str
    message: bytes


class Bid(msgspec.Struct, array_like=True, frozen=True):
    """One of the best: less is better; `number` is of its subscription on its node.

    A share group is as good as its best member; if that is another one, who is away, `own` is the
    score of the one named here.
    """

    score: float
    age: int
    number: int
    client: str
    group: str = ""
    distance_m: float | None = None
    is_away: bool = False
    own: float | None = None


class Bids(msgspec.Struct, array_like=True, frozen=True, tag="b"):
    """My best for your message of this number; behind them, who could stand in for a group."""

    number: int
    bids: list[Bid]


class Claim(msgspec.Struct, array_like=True, frozen=True, tag="h"):
    """A client has come to me: do you have its session? Answered with `Claimed` unless 0.

    `clean`: end what you have of it, if it was with you no later than at that instant.
    """

    number: int
    client_id: str
    clean: bool
    last_ms: int = 1 << 62


class Claimed(msgspec.Struct, array_like=True, frozen=True, tag="H"):
    """When the client of your claim came here last; or `NOT_HERE`, or `COMES_HERE`."""

    number: int
    last_ms: int


class TunnelOpened(msgspec.Struct, array_like=True, frozen=True, tag="t"):
    """A client of yours talks through me from now on: its CONNECT, and who I found it to be."""

    number: int
    connect: bytes
    user_name: str | None
    address: str


class TunnelClosed(msgspec.Struct, array_like=True, frozen=True, tag="T"):
    """The end of a tunnel: the one that you opened, or (`is_mine`) one of mine."""

    number: int
    is_mine: bool


class TunnelPaused(msgspec.Struct, array_like=True, frozen=True, tag="w"):
    """The client at the end of my tunnel does not read, or reads again."""

    number: int
    is_paused: bool


Told: TypeAlias = (
    Interest
    | InterestKnown
    | Retained
    | PlansUsed
    | Ordered
    | Settled
    | Contest
    | Bids
    | Claim
    | Claimed
    | TunnelOpened
    | TunnelClosed
    | TunnelPaused
)

_encode = msgspec.msgpack.Encoder().encode
_decode_told = msgspec.msgpack.Decoder(Told).decode
_decode_greeting = msgspec.msgpack.Decoder(Greeting).decode


def encode(message: Told | Greeting) -> bytes:
    """Return a message as bytes."""
    return _encode(message)


def decode(data: bytes) -> Told:
    """Return the message; anything else is a PeerProtocolError."""
    try:
        told: Told = _decode_told(data)
    except msgspec.MsgspecError as problem:
        raise PeerProtocolError(str(problem), where="message between nodes") from None
    return told


def decode_greeting(data: bytes) -> Greeting:
    """Return the greeting; anything else is a PeerProtocolError."""
    try:
        return _decode_greeting(data)
    except msgspec.MsgspecError as problem:
        raise PeerProtocolError(str(problem), where="greeting of a node") from None
