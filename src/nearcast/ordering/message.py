"""A message with its control information, and what becomes of it at its destination.

A message *is* its bytes; nothing is taken apart before somebody asks. Layout, control
information first (the forms are explained in codec.py):

    1 byte   algorithm (2 bits), own lifetime given (1), names given (1), width of times (4)
    names    if given: how many, then length and UTF-8 text of each
    varint   number of the sender
    7 bytes  when it was sent, in microseconds
    varint   its own lifetime in microseconds, if given
    set      destinations
    varint   number of the destination that this copy is for
    body     set of senders, then one row for each
    waits    only Δ-causal: set of positions among the body's entries, then count and
             (number, time) of those that are in no row of the body
    varint   length of the payload, then the payload

Read next: account.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from nearcast.model.errors import PeerProtocolError
from nearcast.ordering import layout
from nearcast.ordering.account import Account, read_account
from nearcast.ordering.clocks import MICROSECONDS
from nearcast.ordering.kernels import entries
from nearcast.ordering.layout import HIGHEST_NUMBER, numbers_in
from nearcast.ordering.names import ProcessId, names_bytes, read_names, wrong

NAMED: Final = 0x08
_NOTHING: Final = layout.new_state(layout.DELTA_CAUSAL, 1, 1)  # only judged against, never changed

_COMPLAINTS: Final = {
    layout.TRUNCATED: ("bytes that end too early", "a whole message"),
    layout.BAD_WIDTH: ("times of a width that is not in use", "2 to 7 bytes"),
    layout.BAD_SET: ("a set that is too long, or goes on", "a single one of at most 4096"),
    layout.BAD_NUMBER: ("a number that no process has", f"0 to {HIGHEST_NUMBER}, one per name"),
    layout.DISORDER: ("times of one sender out of order", "ascending times"),
    layout.TO_ITSELF: ("a message to its own sender", "other destinations"),
    layout.NO_DESTINATION: ("a copy for somebody else", "one of the destinations"),
    layout.NOT_PAST: ("a past that is not past", "entries older than the message"),
    layout.BAD_POSITION: ("a position beyond the entries", "one of the entries"),
    layout.BAD_LENGTH: ("bytes of another length than told", "the length told"),
    layout.TOO_LONG: ("a number of more than 63 bits", "a shorter one"),
}


def complaint(code: int) -> PeerProtocolError:
    """Return the error for what a kernel found wrong."""
    found, expected = _COMPLAINTS[code]
    return wrong(found, expected=expected)


class Algorithm(IntEnum):
    """Whose control information a message carries."""

    DELTA_CAUSAL = layout.DELTA_CAUSAL
    RAYNAL_SCHIPER_TOUEG = layout.RAYNAL_SCHIPER_TOUEG
    PRAKASH_RAYNAL_SINGHAL = layout.PRAKASH_RAYNAL_SINGHAL
    KSHEMKALYANI_SINGHAL = layout.KSHEMKALYANI_SINGHAL


class Message(NamedTuple):
    """One copy of a multicast, for one destination.

    `data` begins with the control information, without names, which ends at `end`; the payload
    follows it there, or is `sent_payload`, which all copies share before they are encoded.
    """

    data: bytes
    end: int
    sent_payload: bytes | None
    names: tuple[str, ...]  # number → name; empty when processes are numbers

    @property
    def payload(self) -> bytes:
        """What the application sent."""
        return self.data[self.end :] if self.sent_payload is None else self.sent_payload

    @property
    def control_bytes(self) -> int:
        """True size of everything but the payload, on the wire."""
        return self.end + (len(names_bytes(self.names)) if self.names else 0)

    @property
    def sent_us(self) -> int:
        """When it was sent, in microseconds of the sender's clock."""
        at = 2 if self.data[1] < 0x80 else 3
        return int.from_bytes(self.data[at : at + 7], "little")

    @property
    def sent(self) -> float:
        """When it was sent, in seconds of the sender's clock."""
        return self.sent_us / MICROSECONDS

    @property
    def sender_number(self) -> int:
        """The number of who sent it."""
        first = self.data[1]
        return first if first < 0x80 else first & 0x7F | self.data[2] << 7

    @property
    def sender(self) -> ProcessId:
        """Who sent it."""
        return self._name(self.sender_number)

    @property
    def destination(self) -> ProcessId:
        """Whom this copy is for."""
        return self._name(self.account().to)

    @property
    def destinations(self) -> frozenset[ProcessId]:
        """All who get a copy."""
        return frozenset(self._name(number) for number in numbers_in(self.account().destinations))

    @property
    def lifetime(self) -> float | None:
        """Its own, shorter lifetime in seconds, if it has one."""
        own_us = self.account().lifetime_us
        return own_us / MICROSECONDS if own_us else None

    @property
    def waits(self) -> frozenset[tuple[ProcessId, int]]:
        """What it waits for: (sender, sent_us) to be delivered or expired first."""
        return frozenset((self._name(number), at_us) for number, at_us in self.account().waits)

    def account(self) -> Account:
        """Return the control information taken apart, for an audit or a test. O(bytes)."""
        return read_account(self.data)

    def _name(self, number: int) -> ProcessId:
        return self.names[number] if self.names else number

    def encode(self, *, roster: bool = False) -> bytes:
        """Return the bytes to send. Names are left out where all know the same `roster`."""
        data = self.data if self.sent_payload is None else self.data + self.sent_payload
        if roster or not self.names:
            return data
        return bytes((data[0] | NAMED,)) + names_bytes(self.names) + data[1:]

    @staticmethod
    def decode(data: bytes, *, roster: tuple[str, ...] = ()) -> Message:
        """Read a message; `PeerProtocolError` if it is none or contradicts itself. O(bytes)."""
        most = HIGHEST_NUMBER
        data = bytes(data)  # no copy if it is bytes; kernels take nothing else
        if roster or (data and data[0] & NAMED):
            data, roster = _without_names(data, roster)
            most = len(roster) - 1
        end = entries().judge(_NOTHING, data, most)
        if end < 0:
            raise complaint(end)
        return tuple.__new__(Message, (data, end, None, roster))


def _without_names(data: bytes, roster: tuple[str, ...]) -> tuple[bytes, tuple[str, ...]]:
    if not data or not data[0] & NAMED:
        return data, roster
    names, at = read_names(data, 1)
    return bytes((data[0] & ~NAMED,)) + data[at:], names


class Reason(Enum):
    """Why a message was not delivered. The order is that of the codes in kernels.py."""

    LATE = "it arrived after its lifetime"
    WAITED_TOO_LONG = "its own, shorter lifetime ended while it waited"
    DUPLICATE = "it was delivered already, or waits already"
    FUTURE = "its time lies further ahead than clocks may differ"
    NOT_FOR_US = "this copy is for another process, or comes from ourselves"
    UNKNOWN_PROCESS = "it names a process that is not in the group"
    CONTRADICTION = "its account of the past contradicts itself, or what we sent ourselves"
    OTHER_ALGORITHM = "its control information is of another algorithm"
    MALFORMED = "its bytes are no message"


class Deliver(NamedTuple):
    """Pass the message to the application now."""

    message: Message


class Discard(NamedTuple):
    """The message will never be delivered here."""

    message: Message
    reason: Reason


Output = Deliver | Discard


@dataclass(frozen=True, slots=True)
class Counters:
    """What has happened so far."""

    sent: int
    delivered: int
    held: int
    skew_violations: int
    discarded: dict[Reason, int]
