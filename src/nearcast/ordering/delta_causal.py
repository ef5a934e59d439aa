"""Δ-causal multicast with minimal control information (Jang; section 4 of the paper).

What a process knows of messages that may not have been delivered everywhere is a row per
sender: (time, destinations still open). Sending takes the destinations of the new message out
of all rows, because the new message stands in for the old ones there; what was taken out is
what the copy for that destination has to wait for. Delivering merges the sender's rows.

The last entry of a row stays as a marker when nobody is left in it: it says "of this sender I
know everything up to here", which lets the merge recognise what the other side has dropped.
A marker goes when it expires (trap T2.5). Entries are kept for lifetime plus skew, because a
slower clock elsewhere may still accept the message.

Two things go beyond the paper; both only leave rows out of a copy:

    1. What the last message to the same destination carried, and has not changed since, is not
       repeated. No FIFO channel is needed: the copy is delivered after that last message, or
       after its expiry, and then all it carried has expired too. (Expired for every clock: so
       only rows older than that message by at least the skew are left out.)
    2. Rows that are markers and nothing else stay at home: they save others less than they cost.

Read next: peers.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.ordering.message import (
    TIME_BYTES,
    Algorithm,
    Body,
    Cast,
    Message,
    ProcessId,
    Wait,
    read_body,
)
from nearcast.ordering.process import DEFAULT_SKEW_S, CausalProcess
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

    def __init__(
        self,
        process: ProcessId,
        lifetime: float,
        *,
        skew: float = DEFAULT_SKEW_S,
        processes: Iterable[ProcessId] | None = None,
    ) -> None:
        super().__init__(process, lifetime, skew=skew, processes=processes)
        self._changed: dict[int, int] = {}  # row → our last send before it changed
        self._told: dict[int, int] = {}  # destination → our last message to it

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        """Take sending steps 1 to 5 of the paper."""
        waits = self._stand_in(cast.destinations, now_us)
        told = self._told
        bodies: dict[int, Body] = {}
        copies = []
        for number in numbers:
            since_us = told.get(number, -1)
            body = bodies.get(since_us)
            if body is None:
                body = bodies[since_us] = self._news(since_us)
            copies.append(Message(cast, number, body, tuple(waits.get(number, ()))))
            told[number] = cast.sent_us
        self._enter(cast)
        return copies

    def _news(self, since_us: int) -> Body:
        """Return what a destination has to be told that we last told at `since_us`. O(n)."""
        changed, settled_us = self._changed, since_us - self._skew_us
        rows = {
            number: row
            for number, row in self._rows.items()
            if row.union and (changed[number] >= since_us or row.last_us > settled_us)
        }
        return Body(rows, self._clock_us, self._width)

    def _put(self, number: int, row: Row) -> None:
        self._rows[number] = row
        self._changed[number] = self._last_sent_us

    def _stand_in(self, destinations: int, now_us: int) -> dict[int, list[Wait]]:
        """Take `destinations` out of all rows; return who of them waits for what. O(n e)."""
        dead_us = now_us - self._keep_us
        waits: dict[int, list[Wait]] = {}
        touched = [
            (number, row)
            for number, row in self._rows.items()
            if row.union & destinations or row.first_us < dead_us
        ]
        for number, row in touched:
            rest = _without(number, row, destinations, dead_us, waits)
            if rest is None:
                del self._rows[number]
            else:
                self._put(number, rest)
        return waits

    def _enter(self, cast: Cast) -> None:
        """Note our own send."""
        row, last = self._rows.get(self._me), (cast.sent_us, cast.destinations)
        self._rows[self._me] = Row((last,) if row is None else _and_then(row, last))
        self._changed[self._me] = cast.sent_us

    def _absorb(self, message: Message) -> None:
        """Take receiving steps 4 to 6, the message itself entered first (trap T2.1)."""
        cast, theirs_of = message.cast, message.body.rows
        rows, changed, stamp = self._rows, self._changed, self._last_sent_us
        sender = cast.sender
        for number, theirs in theirs_of.items():
            mine = rows.get(number)
            if number == sender:
                continue
            if mine is None or mine.last_us < theirs.first_us:
                rows[number] = theirs
                changed[number] = stamp
            elif mine is not theirs and mine.first_us <= theirs.last_us:
                both = merged(mine, theirs)
                if both is not mine:
                    rows[number] = both
                    changed[number] = stamp
        own, last = theirs_of.get(sender), (cast.sent_us, cast.destinations & ~self._my_bit)
        theirs = Row((last,) if own is None else _and_then(own, last))
        mine = rows.get(sender)
        rows[sender] = theirs if mine is None else merged(mine, theirs)
        changed[sender] = stamp
        if rows[sender].union & self._my_bit:
            self._arrived(sender, cast.sent_us)

    def _arrived(self, sender: int, sent_us: int) -> None:
        """Note that we ourselves are served; only an adopted past can name us (trap T2.2)."""
        row = self._rows[sender]
        kept = [(t, bits & ~self._my_bit if t <= sent_us else bits) for t, bits in row.entries]
        self._put(sender, Row(_without_empty(kept)))

    def forget(self, process: ProcessId) -> None:
        """Take a process that has left out of all destination sets; see `CausalProcess`."""
        number = self._names.known(process)
        super().forget(process)
        if number is not None:
            self._told.pop(number, None)

    def _sweep(self, now_us: int) -> None:
        super()._sweep(now_us)
        dead_us = now_us - self._keep_us
        self._told = {number: at for number, at in self._told.items() if at >= dead_us}
        self._changed = {number: self._changed[number] for number in self._rows}

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
            self._put(number, theirs if mine is None else merged(mine, theirs))
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
    last_us = row.last_us
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


def _and_then(row: Row, last: Entry) -> Entries:
    """Append an entry; an empty one before it has served as a marker."""
    return (*(row.entries if row.entries[-1][1] else row.entries[:-1]), last)


def _without_empty(entries: list[Entry]) -> Entries:
    last_us = entries[-1][0]
    return tuple([entry for entry in entries if entry[1] or entry[0] == last_us])


def merged(mine: Row, theirs: Row) -> Row:
    """Return what two processes together know of one sender (receiving steps 4 and 5).

    Whoever knows the sender's later message has had its say on the earlier ones: what it no
    longer lists is settled. What both list keeps the destinations open to both. O(entries).
    """
    newer, older = (theirs, mine) if mine.last_us < theirs.last_us else (mine, theirs)
    latest_of_older = older.last_us
    if newer.first_us > latest_of_older:
        return newer
    if newer.entries == older.entries:
        return mine
    if newer.first_us == newer.last_us == older.first_us:  # one entry each: the usual case
        bits = mine.union & theirs.union
        if bits == mine.union:
            return mine
        return theirs if bits == theirs.union else Row(((mine.last_us, bits),))
    last_us = newer.last_us
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
    return older if entries == older.entries else Row(entries)
