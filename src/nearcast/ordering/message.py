"""A message with its control information, and what becomes of it at its destination.

A message *is* its bytes; nothing is taken apart before somebody asks. Layout, control
information first (the forms are explained in codec.py):

    1 byte   kind (2 bits, 0), own lifetime given (1), names given (1), width of times (4)
    names    if given: how many, then length and UTF-8 text of each
    varint   number of the sender
    7 bytes  when it was sent, in microseconds
    varint   its own lifetime in microseconds, if given
    set      destinations
    varint   number of the destination that this copy is for
    body     set of senders, then one row for each
    waits    set of positions among the body's entries, then count and (number, time) of those
             that are in no row of the body
    varint   length of the payload, then the payload

The other kinds are those of `nearcast.papers.delta_causal`.

Read next: process.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from nearcast.model.errors import PeerProtocolError
from nearcast.ordering import kernels, layout
from nearcast.ordering.clocks import MICROSECONDS
from nearcast.ordering.codec import NAMED, OWN_LIFETIME
from nearcast.ordering.layout import HIGHEST_NUMBER, State
from nearcast.ordering.names import ProcessId, names_bytes, read_names, wrong

_READ_IN: Final = layout.new_state(4, 128)  # what does not fit goes to one that is made for it

_COMPLAINTS: Final = {
    layout.TRUNCATED: ("bytes that end too early", "a whole message"),
    layout.BAD_WIDTH: ("times of a width that is not in use", "2 to 7 bytes"),
    layout.OTHER_KIND: ("control information of another kind", "that of Δ-causal order"),
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


class CausalMessage(NamedTuple):
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
    def lifetime(self) -> float | None:
        """Its own, shorter lifetime in seconds, if it has one."""
        if not self.data[0] & OWN_LIFETIME:
            return None
        return int(_read(self.data, HIGHEST_NUMBER, whole=False)[layout.M_OWN]) / MICROSECONDS

    @property
    def waits(self) -> frozenset[tuple[ProcessId, int]]:
        """What it waits for: (sender, sent_us) to be delivered or expired first."""
        state = _read(self.data, HIGHEST_NUMBER, whole=False)
        begin = int(state[layout.WAITS])
        pairs = state[begin : begin + 2 * int(state[layout.M_WAITS])].tolist()
        return frozenset(zip(map(self._name, pairs[::2]), pairs[1::2], strict=True))

    def _name(self, number: int) -> ProcessId:
        return self.names[number] if self.names else number

    def encode(self) -> bytes:
        """Return the bytes to send."""
        data = self.data if self.sent_payload is None else self.data + self.sent_payload
        if not self.names:
            return data
        return bytes((data[0] | NAMED,)) + names_bytes(self.names) + data[1:]

    @staticmethod
    def decode(data: bytes) -> CausalMessage:
        """Read a message; `PeerProtocolError` if it is none or contradicts itself. O(bytes)."""
        data = bytes(data)  # no copy if it is bytes; kernels take nothing else
        names: tuple[str, ...] = ()
        if data and data[0] & NAMED:
            names, at = read_names(data, 1)
            data = bytes((data[0] & ~NAMED,)) + data[at:]
        most = len(names) - 1 if names else HIGHEST_NUMBER
        end = int(_read(data, most, whole=True)[layout.M_END])
        return tuple.__new__(CausalMessage, (data, end, None, names))


def _read(data: bytes, most: int, *, whole: bool) -> State:
    """Return a state with what a message says; `PeerProtocolError` if it is none."""
    read, state = kernels.straight(kernels.read), _READ_IN
    while (end := read(state, data, whole, most)) < 0:
        if end != layout.GROW:
            raise complaint(end)
        state = layout.grown(
            state, int(state[layout.NEED_NUMBER]), int(state[layout.NEED_CAPACITY])
        )
    return state


class DiscardReason(Enum):
    """Why a message was not delivered. The order is that of the codes in layout.py."""

    LATE = "it arrived after its lifetime"
    WAITED_TOO_LONG = "its own, shorter lifetime ended while it waited"
    DUPLICATE = "it was delivered already, or waits already"
    FUTURE = "its time lies further ahead than clocks may differ"
    NOT_FOR_US = "this copy is for another process, or comes from ourselves"
    UNKNOWN_PROCESS = "it names a process that cannot be in the group"
    CONTRADICTION = "its account of the past contradicts itself, or what we sent ourselves"


class Deliver(NamedTuple):
    """Pass the message to the application now."""

    message: CausalMessage


class Discard(NamedTuple):
    """The message will never be delivered here."""

    message: CausalMessage
    reason: DiscardReason


Output = Deliver | Discard


@dataclass(frozen=True, slots=True)
class CausalCounters:
    """What has happened so far."""

    sent: int
    delivered: int
    held: int
    skew_violations: int
    discarded: dict[DiscardReason, int]
