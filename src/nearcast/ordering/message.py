"""A message with its control information, and what becomes of it at its destination.

Layout on the wire, control information first:

    1 byte   algorithm (2 bits), own lifetime given (1), names given (1), width of times (4)
    names    if given: how many, then length and UTF-8 text of each
    varint   number of the sender
    7 bytes  when it was sent, in microseconds
    varint   its own lifetime in microseconds, if given
    set      destinations
    varint   number of the destination that this copy is for
    body     set of senders, then one row for each
    waits    only Δ-causal: set of positions among the body's entries, then count and
             (number, time) of those that are in no row any more
    varint   length of the payload, then the payload

Read next: process.py.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, NamedTuple

from nearcast.ordering.wire import Reader, Row, numbers_in, set_bytes, varint, wrong

ProcessId = int | str
Wait = tuple[int, int]
"""(number of a sender, sent_us): to be delivered or expired first."""

TIME_BYTES: Final = 7
MICROSECONDS: Final = 1_000_000
_OWN_LIFETIME: Final = 0x04
_NAMED: Final = 0x08


class Algorithm(IntEnum):
    """Whose control information a message carries."""

    DELTA_CAUSAL = 0
    RAYNAL_SCHIPER_TOUEG = 1
    PRAKASH_RAYNAL_SINGHAL = 2
    KSHEMKALYANI_SINGHAL = 3


class Body:
    """The rows that a message carries, by number of their sender.

    Copies of one multicast share bodies, and no other message does, hence their bytes are made
    once. `newest_us` is not below the time of any entry.
    """

    __slots__ = ("_places", "_wire", "head", "newest_us", "rows", "width")

    def __init__(self, rows: dict[int, Row], newest_us: int, width: int, wire: bytes = b"") -> None:
        self.rows = rows
        self.newest_us = newest_us
        self.width = width
        self._wire = wire
        self._places: dict[Wait, int] | None = None
        self.head = b""  # what comes before the destination; the same for all copies

    def places(self) -> dict[Wait, int]:
        """Return the position of each entry among all entries. O(entries) once, then O(1)."""
        if self._places is None:
            rows = self.rows
            entries = [(k, at) for k in sorted(rows) for at, _ in rows[k].entries]
            self._places = {entry: place for place, entry in enumerate(entries)}
        return self._places

    def wire(self) -> bytes:
        """Return the set of senders and their rows. O(rows) once, then O(1)."""
        if not self._wire:
            rows, width, senders = self.rows, self.width, 0
            for number in rows:
                senders |= 1 << number
            self._wire = set_bytes(senders) + b"".join(
                [rows[number].wire(width) for number in sorted(rows)]
            )
        return self._wire

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return isinstance(other, Body) and self.rows == other.rows

    def __hash__(self) -> int:
        """Agree with equality."""
        return hash(tuple(sorted(self.rows.items(), key=lambda item: item[0])))


def read_body(reader: Reader, width: int, sent_us: int) -> Body:
    """Read what `Body.wire` wrote."""
    start = reader.at
    senders = numbers_in(reader.set())
    rows = {number: reader.row(width, sent_us) for number in senders}
    newest_us = max((row.last_us for row in rows.values()), default=-1)
    return Body(rows, newest_us, width, reader.data[start : reader.at])


class Cast(NamedTuple):
    """What all copies of one multicast have in common."""

    algorithm: Algorithm
    sender: int
    sent_us: int
    destinations: int
    lifetime_us: int  # 0: that of the group
    names: tuple[str, ...]  # number → name; empty when processes are numbers
    payload: bytes


class Message(NamedTuple):
    """One copy of a multicast, for one destination."""

    cast: Cast
    to: int
    body: Body
    waits: tuple[Wait, ...] = ()

    @property
    def sender(self) -> ProcessId:
        """Who sent it."""
        return self._name(self.cast.sender)

    @property
    def destination(self) -> ProcessId:
        """Whom this copy is for."""
        return self._name(self.to)

    @property
    def destinations(self) -> frozenset[ProcessId]:
        """All who get a copy."""
        return frozenset(self._name(number) for number in numbers_in(self.cast.destinations))

    @property
    def sent_us(self) -> int:
        """When it was sent, in microseconds of the sender's clock."""
        return self.cast.sent_us

    @property
    def sent(self) -> float:
        """When it was sent, in seconds of the sender's clock."""
        return self.cast.sent_us / MICROSECONDS

    @property
    def payload(self) -> bytes:
        """What the application sent."""
        return self.cast.payload

    @property
    def control_bytes(self) -> int:
        """True size of everything but the payload, on the wire."""
        return len(self._control())

    def _name(self, number: int) -> ProcessId:
        return self.cast.names[number] if self.cast.names else number

    def encode(self, *, roster: bool = False) -> bytes:
        """Return the bytes to send. Names are left out where all know the same `roster`."""
        return self._control(named=not roster) + self.cast.payload

    def _control(self, *, named: bool = True) -> bytes:
        cast, body = self.cast, self.body
        if not body.head:
            body.head = _head_bytes(cast, body.width, cast.names)
        head = body.head if named or not cast.names else _head_bytes(cast, body.width, ())
        waits = self._waits_bytes() if cast.algorithm is Algorithm.DELTA_CAUSAL else b""
        return b"".join((head, varint(self.to), body.wire(), waits, varint(len(cast.payload))))

    def _waits_bytes(self) -> bytes:
        """Point at entries of the body where possible: a bit or a byte instead of four."""
        if not self.waits:
            return b"\0\0"
        body, places = self.body, self.body.places()
        positions, rest = 0, []
        for wait in self.waits:
            place = places.get(wait)
            if place is None:
                rest.append(wait)
            else:
                positions |= 1 << place
        window = (1 << 8 * body.width) - 1
        out = [set_bytes(positions), varint(len(rest))]
        for number, sent_us in rest:
            out += varint(number), (sent_us & window).to_bytes(body.width, "little")
        return b"".join(out)

    @staticmethod
    def decode(data: bytes, *, roster: tuple[str, ...] = ()) -> Message:
        """Read a message; `PeerProtocolError` if it is none or contradicts itself.

        Complexity: O(bytes).
        """
        reader = Reader(data)
        flags = reader.byte()
        width = flags >> 4
        if not 2 <= width <= TIME_BYTES:
            raise wrong(f"times of {width} bytes", expected="2 to 7")
        names = _read_names(reader) if flags & _NAMED else roster
        message = _read_numbered(reader, flags, width, names)
        _refuse_contradictions(message)
        if names:
            _refuse_unnamed(message, len(names))
        return message


def _head_bytes(cast: Cast, width: int, names: tuple[str, ...]) -> bytes:
    own = cast.lifetime_us
    flags = cast.algorithm | width << 4
    if own:
        flags |= _OWN_LIFETIME
    if names:
        flags |= _NAMED
    return b"".join(
        (
            flags.to_bytes(1, "little"),
            _names_bytes(names) if names else b"",
            varint(cast.sender),
            cast.sent_us.to_bytes(TIME_BYTES, "little"),
            varint(own) if own else b"",
            set_bytes(cast.destinations),
        )
    )


def _names_bytes(names: tuple[str, ...]) -> bytes:
    out = [varint(len(names))]
    for name in names:
        text = name.encode()
        out += varint(len(text)), text
    return b"".join(out)


def _read_names(reader: Reader) -> tuple[str, ...]:
    count = reader.number()
    try:
        names = tuple(str(reader.take(reader.varint()), "utf-8") for _ in range(count))
    except UnicodeDecodeError as error:
        raise wrong("a name that is not UTF-8", expected="UTF-8") from error
    if not names or len(set(names)) < len(names):
        raise wrong(f"{len(names)} names, some equal or none", expected="different names")
    return names


def _read_numbered(reader: Reader, flags: int, width: int, names: tuple[str, ...]) -> Message:
    algorithm = Algorithm(flags & 3)
    sender = reader.number()
    sent_us = int.from_bytes(reader.take(TIME_BYTES), "little")
    own_us = reader.varint() if flags & _OWN_LIFETIME else 0
    destinations = reader.set()
    to = reader.number()
    body = read_body(reader, width, sent_us)
    waits = _read_waits(reader, body, sent_us) if algorithm is Algorithm.DELTA_CAUSAL else ()
    payload = reader.take(reader.varint())
    if reader.at != len(reader.data):
        raise wrong(f"{len(reader.data)} bytes", expected=f"{reader.at}")
    cast = Cast(algorithm, sender, sent_us, destinations, own_us, names, payload)
    return Message(cast, to, body, waits)


def _read_waits(reader: Reader, body: Body, sent_us: int) -> tuple[Wait, ...]:
    positions = numbers_in(reader.set())
    waits: list[Wait] = []
    if positions:
        entries = list(body.places())
        if positions[-1] >= len(entries):
            raise wrong(f"position {positions[-1]}", expected=f"below {len(entries)}")
        waits = [entries[place] for place in positions]
    for _ in range(reader.varint()):
        number = reader.number()
        waits.append((number, reader.time(body.width, sent_us)))
    return tuple(waits)


def _refuse_contradictions(message: Message) -> None:
    """Refuse what no process can truthfully say, whatever its past."""
    cast = message.cast
    if cast.destinations >> cast.sender & 1:
        raise wrong("a message to its own sender", expected="other destinations")
    if not cast.destinations >> message.to & 1:
        raise wrong(f"a copy for {message.to}", expected="one of the destinations")
    if message.body.newest_us >= cast.sent_us or any(at >= cast.sent_us for _, at in message.waits):
        raise wrong("a past that is not past", expected="entries older than the message")
    for number, row in message.body.rows.items():
        if row.union >> number & 1:
            raise wrong(f"a message from {number} to itself", expected="other destinations")


def _refuse_unnamed(message: Message, count: int) -> None:
    bits = message.cast.destinations | 1 << message.cast.sender
    for number, row in message.body.rows.items():
        bits |= row.union | 1 << number
    for number, _ in message.waits:
        bits |= 1 << number
    if bits >> count:
        raise wrong(f"number {bits.bit_length() - 1}", expected=f"below {count}: one per name")


class Reason(Enum):
    """Why a message was not delivered."""

    LATE = "it arrived after its lifetime"
    WAITED_TOO_LONG = "its own, shorter lifetime ended while it waited"
    DUPLICATE = "it was delivered already, or waits already"
    FUTURE = "its time lies further ahead than clocks may differ"
    NOT_FOR_US = "this copy is for another process, or comes from ourselves"
    UNKNOWN_PROCESS = "it names a process that is not in the group"
    CONTRADICTION = "its account of the past contradicts itself, or what we sent ourselves"
    OTHER_ALGORITHM = "its control information is of another algorithm"


class Deliver(NamedTuple):
    """Pass the message to the application now."""

    message: Message


class Discard(NamedTuple):
    """The message will never be delivered here."""

    message: Message
    reason: Reason


Output = Deliver | Discard
