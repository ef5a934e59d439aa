"""Δ-causal multicast with minimal control information (Jang; section 4 of the paper).

What a process knows of messages that may not have been delivered everywhere is a row per
sender: (time, destinations still open). Sending takes the destinations of the new message out
of all rows, because the new message stands in for the old ones there; what was taken out is
what the copy for that destination has to wait for. Delivering merges the sender's rows.

The last entry of a row stays as a marker when nobody is left in it: it says "of this sender I
know everything up to here", which lets the merge recognise what the other side has dropped.
A marker goes when it expires (trap T2.5). Entries are kept for lifetime plus skew, because a
slower clock elsewhere may still accept the message.

Read next: peers.py.
"""

from __future__ import annotations

from nearcast.ordering.message import (
    TIME_BYTES,
    Algorithm,
    Body,
    Cast,
    Message,
    Wait,
    read_body,
)
from nearcast.ordering.process import CausalProcess
from nearcast.ordering.wire import Entries, Entry, Reader, Row, wrong


class DeltaCausal(CausalProcess):
    """One process that sends and delivers in Δ-causal order, carrying little.

    See `CausalProcess` for contract and complexity.

    >>> asker, answerer, listener = (DeltaCausal(process=i, lifetime=0.25) for i in (1, 2, 3))
    >>> question = asker.send({2, 3}, b"who?", now=10.0)
    >>> answerer.receive(question[2], now=10.01)[0].message.payload
    b'who?'
    >>> answer = answerer.send({3}, b"me", now=10.02)
    >>> listener.receive(answer[3], now=10.03)           # overtook the question: held
    []
    >>> [o.message.payload for o in listener.receive(question[3], now=10.04)]
    [b'who?', b'me']
    """

    algorithm = Algorithm.DELTA_CAUSAL

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        """Take sending steps 1 to 5 of the paper."""
        waits = self._stand_in(cast.destinations, now_us)
        rows = self._rows
        body = Body(rows.copy(), self._clock_us, self._width)
        self._enter(self._me, cast.sent_us, cast.destinations)
        if not waits:
            return [Message(cast, number, body) for number in numbers]
        return [Message(cast, number, body, tuple(waits.get(number, ()))) for number in numbers]

    def _stand_in(self, destinations: int, now_us: int) -> dict[int, list[Wait]]:
        """Take `destinations` out of all rows; return who of them waits for what. O(n e)."""
        dead_us = now_us - self._keep_us
        waits: dict[int, list[Wait]] = {}
        changed: list[tuple[int, Row | None]] = []
        for number, row in self._rows.items():
            if row.union & destinations or row.entries[0][0] < dead_us:
                changed.append((number, _without(number, row, destinations, dead_us, waits)))
        for number, rest in changed:
            if rest is None:
                del self._rows[number]
            else:
                self._rows[number] = rest
        return waits

    def _enter(self, sender: int, sent_us: int, destinations: int) -> None:
        """Add the newest entry of a sender; an empty marker before it has served."""
        row = self._rows.get(sender)
        entry = ((sent_us, destinations),)
        if row is None:
            self._rows[sender] = Row(entry)
        elif row.entries[-1][1]:
            self._rows[sender] = Row(row.entries + entry)
        else:
            self._rows[sender] = Row(row.entries[:-1] + entry)

    def _absorb(self, message: Message) -> None:
        """Take receiving steps 4 to 6, the message itself entered first (trap T2.1)."""
        cast = message.cast
        rows, sender = self._rows, cast.sender
        for number, theirs in message.body.rows.items():
            if number != sender:
                mine = rows.get(number)
                if mine is None:
                    rows[number] = theirs
                elif mine is not theirs and mine.entries != theirs.entries:
                    rows[number] = merged(mine, theirs)
        own = message.body.rows.get(sender)
        entries: Entries = ((cast.sent_us, cast.destinations & ~self._my_bit),)
        if own is not None:
            entries = tuple([e for e in own.entries if e[1]]) + entries
        mine = rows.get(sender)
        rows[sender] = Row(entries) if mine is None else merged(mine, Row(entries))
        self._arrived(sender, cast.sent_us)

    def _arrived(self, sender: int, sent_us: int) -> None:
        """Note that we ourselves are served; only an adopted past can name us (trap T2.2)."""
        row = self._rows[sender]
        if row.union & self._my_bit:
            kept = [(t, bits & ~self._my_bit if t <= sent_us else bits) for t, bits in row.entries]
            self._rows[sender] = Row(_without_empty(kept))

    # -- a client that moves (trap T2.8) ---------------------------------------------------

    def past(self, now: float) -> bytes:
        """Return all that is known here, for the process that a client moves to.

        O(n e) bytes. It stays of use for lifetime plus skew.
        """
        now_us = self._instant_us(now)
        self._passes(now_us)
        self._stand_in(0, now_us)
        at_us = max(now_us, self._clock_us + 1)
        head = bytes((self._width,)) + at_us.to_bytes(TIME_BYTES, "little")
        return head + Body(self._rows, self._clock_us, self._width).wire()

    def adopt(self, past: bytes, now: float) -> None:
        """Take over the past of a client that has moved here, before sending on its behalf.

        Messages of that past which are still on their way to us stay known as such, so that
        whoever hears from us and answers us does not overtake them. Raises
        `PeerProtocolError` and changes nothing if `past` is damaged or from the future.
        """
        now_us = self._instant_us(now)
        at_us, body = _read_past(past)
        if at_us > now_us + self._skew_us + 1:
            raise wrong(f"a past up to {at_us} µs", expected=f"at most {now_us + self._skew_us}")
        self._passes(now_us)
        self._clock_us = max(self._clock_us, body.newest_us)
        for number, theirs in body.rows.items():
            mine = self._rows.get(number)
            self._rows[number] = theirs if mine is None else merged(mine, theirs)
            self._arrived(number, self._delivered.get(number, -1))


def _read_past(past: bytes) -> tuple[int, Body]:
    reader = Reader(past)
    width = reader.byte()
    if not 2 <= width <= TIME_BYTES:
        raise wrong(f"times of {width} bytes", expected="2 to 7")
    at_us = int.from_bytes(reader.take(TIME_BYTES), "little")
    body = read_body(reader, width, at_us)
    if reader.at != len(past) or body.newest_us >= at_us:
        raise wrong("a past that does not end where it should", expected="what `past` returned")
    return at_us, body


def _without(
    number: int, row: Row, destinations: int, dead_us: int, waits: dict[int, list[Wait]]
) -> Row | None:
    """Return the row without the dead and without `destinations`, who now wait for it."""
    kept: list[Entry] = []
    last_us = row.entries[-1][0]
    for entry in row.entries:
        sent_us, bits = entry
        if sent_us < dead_us:
            continue
        hit = bits & destinations
        if hit:
            bits ^= hit
            while hit:
                lowest = hit & -hit
                waits.setdefault(lowest.bit_length() - 1, []).append((number, sent_us))
                hit ^= lowest
        if bits or sent_us == last_us:
            kept.append((sent_us, bits))
    return Row(tuple(kept)) if kept else None


def _without_empty(entries: list[Entry]) -> Entries:
    last_us = entries[-1][0]
    return tuple([entry for entry in entries if entry[1] or entry[0] == last_us])


def merged(mine: Row, theirs: Row) -> Row:
    """Return what two processes together know of one sender (receiving steps 4 and 5).

    Whoever knows the sender's later message has had its say on the earlier ones: what it no
    longer lists is settled. What both list keeps the destinations open to both. O(entries).
    """
    newer, older = (theirs, mine) if mine.entries[-1][0] < theirs.entries[-1][0] else (mine, theirs)
    latest_of_older = older.entries[-1][0]
    last_us = newer.entries[-1][0]
    known = dict(older.entries)
    kept: list[Entry] = []
    for entry in newer.entries:
        sent_us = entry[0]
        if sent_us <= latest_of_older:
            bits = entry[1] & known.get(sent_us, 0)
            if bits or sent_us == last_us:
                kept.append((sent_us, bits))
        else:
            kept.append(entry)
    entries = tuple(kept)
    if entries == newer.entries:
        return newer
    return Row(entries)
