"""Numbers for processes, because a set of numbers is one integer.

Small integers are their own numbers. Strings are numbered as they are met; their messages carry
the names along.

Read next: process.py.
"""

from __future__ import annotations

from array import array

from nearcast.model.errors import LimitError, MisuseError, PeerProtocolError
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
    """Which processes there are, and their numbers. Looking up costs O(1)."""

    def __init__(self, own: ProcessId) -> None:
        self._strings = isinstance(own, str)
        self._number: dict[ProcessId, int] = {}
        self.table: tuple[str, ...] = ()
        self.highest = -1
        self.own = self.number(own)

    def number(self, process: ProcessId) -> int:
        """Return the number of a process, which may be new."""
        known = self._number.get(process)
        if known is not None and isinstance(process, str) == self._strings:
            return known
        self.check(process)
        return self._allot(process)

    def numbers(self, processes: frozenset[ProcessId]) -> list[int]:
        """Return the numbers of several; if one is refused, none is added."""
        number = self._number
        try:
            return [number[process] for process in processes]
        except KeyError:
            for process in processes:
                self.check(process)
            return [self.number(process) for process in sorted(processes, key=str)]

    def known(self, process: ProcessId) -> int | None:
        """Return the number of a process if it is known."""
        return self._number.get(process)

    def translation(self, names: tuple[str, ...]) -> bytes | None:
        """Return our numbers for another's `names`, two bytes each; None if there is no room."""
        if not self._strings or not names:
            return None
        if len(set(names) | set(self.table)) > HIGHEST_NUMBER + 1:
            return None
        return array("H", [self.number(name) for name in names]).tobytes()

    def check(self, process: ProcessId) -> None:
        """Raise if a process cannot be one; allot nothing."""
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
            self.table = (*self.table, process)
        self._number[process] = number
        self.highest = max(self.highest, number)
        return number
