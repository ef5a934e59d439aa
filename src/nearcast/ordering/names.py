"""Numbers for processes, because a set of numbers is one integer.

Small integers are their own numbers. Strings are numbered in the order of the roster, or,
without one, as they are met; their messages then carry the names along.

Read next: process.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.model.errors import (
    KeyInUseError,
    LimitError,
    MisuseError,
    PeerProtocolError,
    UnknownNameError,
)
from nearcast.ordering.layout import HIGHEST_NUMBER

ProcessId = int | str


def wrong(found: str, *, expected: str) -> PeerProtocolError:
    """Return the error for bytes that no correct process sends."""
    return PeerProtocolError(found, where="causal message", expected=expected)


def names_bytes(names: tuple[str, ...]) -> bytes:
    """Return how many names there are, then length and UTF-8 text of each."""
    texts = [name.encode() for name in names]
    return b"".join([_length(len(texts)), *(_length(len(text)) + text for text in texts)])


def _length(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def read_names(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    """Read what `names_bytes` wrote at `at`; return the names and the next position."""
    count, at = _read_length(data, at)
    if not 0 < count <= HIGHEST_NUMBER + 1:
        raise wrong(f"{count} names", expected=f"1 to {HIGHEST_NUMBER + 1}")
    names = []
    for _ in range(count):
        length, at = _read_length(data, at)
        if at + length > len(data):
            raise wrong(f"{len(data)} bytes", expected=f"at least {at + length}")
        try:
            names.append(data[at : at + length].decode())
        except UnicodeDecodeError as error:
            raise wrong("a name that is not UTF-8", expected="UTF-8") from error
        at += length
    if "" in names or len(set(names)) < len(names):
        raise wrong("names that are empty or equal", expected="different names")
    return tuple(names), at


def _read_length(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 4]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise wrong("a length that does not end", expected="at most 4 bytes")


class Names:
    """Which processes there are, and their numbers.

    `roster` closes the group: whoever is not in it (or admitted later) is unknown. All
    members must list the same names in the same order. Looking up costs O(1).
    """

    def __init__(self, own: ProcessId, roster: Iterable[ProcessId] | None) -> None:
        self._strings = isinstance(own, str)
        self._number: dict[ProcessId, int] = {}
        self.table: tuple[str, ...] = ()
        self._closed = False
        self.ever = 0
        for process in roster or ():
            self.admit(process)
        self._closed = roster is not None
        self.own = self.number(own)

    def members(self) -> dict[ProcessId, int]:
        """Return the numbers of all who are known."""
        return dict(self._number)

    def replace_members(self, members: dict[ProcessId, int], table: tuple[str, ...]) -> None:
        """Know exactly these, as another process with our id did."""
        self._number = dict(members)
        self.table = table
        self.ever = sum(1 << number for number in {*members.values(), *range(len(table))})

    @property
    def closed(self) -> bool:
        """Whether only members of a roster may be named."""
        return self._closed

    def number(self, process: ProcessId) -> int:
        """Return the number of a process; in an open group it may be new."""
        known = self._number.get(process)
        if known is not None and isinstance(process, str) == self._strings:
            return known
        self._check_kind(process)
        if self._closed:
            raise UnknownNameError(
                f"process {process!r}", expected="a member", todo="Admit it to the group first."
            )
        return self._allot(process)

    def check(self, process: ProcessId) -> None:
        """Raise what `number` would raise; allot nothing."""
        self._check_kind(process)
        if self._closed and process not in self._number:
            self.number(process)

    def numbers(self, processes: set[ProcessId]) -> list[int]:
        """Return the numbers of several; if one is refused, none is added."""
        number = self._number
        try:
            return [number[process] for process in processes]
        except KeyError:
            for process in processes:
                self._check_kind(process)
            return [self.number(process) for process in sorted(processes, key=str)]

    def known(self, process: ProcessId) -> int | None:
        """Return the number of a process if it is (still) known."""
        return self._number.get(process)

    def admit(self, process: ProcessId) -> int:
        """Add a member; the order of admission must be the same everywhere."""
        self._check_kind(process)
        if process in self._number:
            raise KeyInUseError(f"process {process!r}", where="roster", expected="a new one")
        return self._allot(process)

    def drop(self, process: ProcessId) -> None:
        """Make a member of a closed group unknown. Its number is not used again."""
        if self._closed and self._number.pop(process, None) is None:
            raise UnknownNameError(f"process {process!r}", expected="a member")

    def translation(self, names: tuple[str, ...]) -> list[int] | None:
        """Return our numbers for another's `names`, or None if one of them is unknown."""
        if not self._strings or not names:
            return None
        if self._closed and not all(name in self._number for name in names):
            return None
        if len(set(names) | set(self.table)) > HIGHEST_NUMBER + 1:
            return None
        return [self.number(name) for name in names]

    def _check_kind(self, process: ProcessId) -> None:
        if self._strings:
            if not isinstance(process, str) or not process:
                raise MisuseError(f"process {process!r}", expected="a name, as all the others")
        elif isinstance(process, bool) or not isinstance(process, int):
            raise MisuseError(f"process {process!r}", expected="a number, as all the others")
        elif not 0 <= process <= HIGHEST_NUMBER:
            raise LimitError(f"process {process}", expected=f"0 to {HIGHEST_NUMBER}")

    def _allot(self, process: ProcessId) -> int:
        number = len(self.table) if isinstance(process, str) else process
        if number > HIGHEST_NUMBER:
            raise LimitError(f"{number + 1} names", expected=f"at most {HIGHEST_NUMBER + 1}")
        if isinstance(process, str):
            if process in self.table:  # admitted again
                number = self.table.index(process)
            else:
                self.table = (*self.table, process)
        self._number[process] = number
        self.ever |= 1 << number
        return number
