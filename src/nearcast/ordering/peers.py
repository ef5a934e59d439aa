"""The algorithms that Δ-causal delivery is compared with.

All three were published for channels that lose nothing. Here they get what ours has: physical
times instead of counters, the same rule of expiry (a predecessor counts as settled when its
lifetime is over; what is older than lifetime plus skew is neither kept nor sent), the same rows
of (time, destinations) and the same bytes. What differs is only what each of them keeps.

    RaynalSchiperToueg     the matrix "last message from k to l", nothing removed
    PrakashRaynalSinghal   direct dependencies: per destination, the last messages to it that
                           no later one stands in for
    KshemkalyaniSinghal    the optimal log: also forgets what it can know to be delivered; a
                           log of its own for every destination

Read next: nearcast/experiments/delta_causal.py.
"""

from __future__ import annotations

from nearcast.ordering.delta_causal import merged
from nearcast.ordering.message import Algorithm, Body, Cast, Message, Wait
from nearcast.ordering.process import CausalProcess
from nearcast.ordering.wire import Entries, Entry, Row


class _ByColumn(CausalProcess):
    """Peers read what to wait for out of the rows: the entries that name the destination."""

    def _waits_of(self, message: Message) -> tuple[Wait, ...]:
        bit = self._my_bit
        return tuple(
            [
                (number, sent_us)
                for number, row in message.body.rows.items()
                if row.union & bit
                for sent_us, bits in row.entries
                if bits & bit
            ]
        )

    def _drop_dead(self, now_us: int) -> None:
        dead_us = now_us - self._keep_us
        rows = self._rows
        for number, row in list(rows.items()):
            if row.first_us < dead_us:
                alive = tuple([entry for entry in row.entries if entry[0] >= dead_us])
                if alive:
                    rows[number] = Row(alive)
                else:
                    del rows[number]


class RaynalSchiperToueg(_ByColumn):
    """Raynal, Schiper and Toueg 1991: every message carries the matrix of all last sends.

    Row k holds, for each l, the time of the last message from k to l, equal times together.
    """

    algorithm = Algorithm.RAYNAL_SCHIPER_TOUEG

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        self._drop_dead(now_us)
        body = Body(self._rows.copy(), self._clock_us, self._width)
        self._note(cast)
        return [Message(cast, number, body) for number in numbers]

    def _note(self, cast: Cast) -> None:
        sent = Row(((cast.sent_us, cast.destinations),))
        row = self._rows.get(cast.sender)
        self._rows[cast.sender] = sent if row is None else _latest(row, sent)

    def _absorb(self, message: Message) -> None:
        rows = self._rows
        for number, theirs in message.body.rows.items():
            mine = rows.get(number)
            if mine is None:
                rows[number] = theirs
            elif mine is not theirs and mine.entries != theirs.entries:
                rows[number] = _latest(mine, theirs)
        self._note(message.cast)


class PrakashRaynalSinghal(_ByColumn):
    """Prakash, Raynal and Singhal 1996: every message carries direct dependencies only.

    Row k, read by columns, is their set of (k, time) per destination.
    """

    algorithm = Algorithm.PRAKASH_RAYNAL_SINGHAL

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        self._drop_dead(now_us)
        body = Body(self._rows.copy(), self._clock_us, self._width)
        for number, row in list(self._rows.items()):
            if row.union & cast.destinations:
                self._put(number, _minus(row.entries, cast.destinations))
        self._add(cast.sender, cast.sent_us, cast.destinations)
        return [Message(cast, number, body) for number in numbers]

    def _absorb(self, message: Message) -> None:
        cast, rows = message.cast, self._rows
        theirs_of = message.body.rows
        for number in [*rows, *(k for k in theirs_of if k not in rows)]:
            mine, theirs = rows.get(number), theirs_of.get(number)
            if theirs is not None:
                self._put(number, _direct(mine, theirs, cast.destinations))
        self._add(cast.sender, cast.sent_us, cast.destinations & ~self._my_bit)

    def _put(self, number: int, entries: Entries) -> None:
        if entries:
            self._rows[number] = Row(entries)
        else:
            self._rows.pop(number, None)

    def _add(self, sender: int, sent_us: int, destinations: int) -> None:
        if destinations:
            row, sent = self._rows.get(sender), Row(((sent_us, destinations),))
            self._rows[sender] = sent if row is None else _latest(row, sent)


class KshemkalyaniSinghal(_ByColumn):
    """Kshemkalyani and Singhal 1996: nothing that could be known to be redundant is carried.

    For each destination a log is made in which that destination alone, of all destinations
    of the new message, is left where it still has to wait.
    """

    algorithm = Algorithm.KSHEMKALYANI_SINGHAL

    def _compose(self, cast: Cast, numbers: list[int], now_us: int) -> list[Message]:
        self._drop_dead(now_us)
        rows, others = self._rows, cast.destinations
        copies = []
        for number in numbers:
            log = {k: _pruned(row, others & ~(1 << number)) for k, row in rows.items()}
            copies.append(Message(cast, number, Body(log, self._clock_us, self._width)))
        for k, row in rows.items():
            rows[k] = _pruned(row, others)
        self._enter(cast.sender, cast.sent_us, others)
        return copies

    def _enter(self, sender: int, sent_us: int, destinations: int) -> None:
        row = self._rows.get(sender)
        kept = _filled(row.entries) if row else ()
        self._rows[sender] = Row((*kept, (sent_us, destinations)))

    def _absorb(self, message: Message) -> None:
        cast, rows = message.cast, self._rows
        log = message.body.rows.copy()
        own = log.get(cast.sender)
        log[cast.sender] = Row(
            (*(_filled(own.entries) if own else ()), (cast.sent_us, cast.destinations))
        )
        for number, row in log.items():
            theirs = _pruned(row, self._my_bit)
            mine = rows.get(number)
            if mine is None:
                rows[number] = theirs
            elif mine is not theirs and mine.entries != theirs.entries:
                rows[number] = merged(mine, theirs)


def _filled(entries: Entries) -> Entries:
    return tuple([entry for entry in entries if entry[1]])


def _pruned(row: Row, destinations: int) -> Row:
    """Return the row without `destinations` and without empty entries except the last."""
    if not row.union & destinations:
        return row
    last_us = row.last_us
    kept = [(sent_us, bits & ~destinations) for sent_us, bits in row.entries]
    return Row(tuple([entry for entry in kept if entry[1] or entry[0] == last_us]))


def _minus(entries: Entries, destinations: int) -> Entries:
    kept = [(sent_us, bits & ~destinations) for sent_us, bits in entries]
    return tuple([entry for entry in kept if entry[1]])


def _latest(mine: Row, theirs: Row) -> Row:
    """Return, for each destination, the later of two times. O(entries)."""
    together = sorted(mine.entries + theirs.entries, reverse=True)
    seen = 0
    kept: list[Entry] = []
    for sent_us, bits in together:
        new = bits & ~seen
        if new:
            seen |= new
            if kept and kept[-1][0] == sent_us:
                kept[-1] = (sent_us, kept[-1][1] | new)
            else:
                kept.append((sent_us, new))
    kept.reverse()
    entries = tuple(kept)
    if not entries or entries == mine.entries:
        return mine
    return theirs if entries == theirs.entries else Row(entries)


def _direct(mine: Row | None, theirs: Row, served: int) -> Entries:
    """Unite two sets of direct dependencies on one sender, cell by cell.

    Where the new message goes (`served`) it stands in for what its sender knew, so of ours
    only what is later remains; elsewhere the later of both.
    """
    if mine is None:
        return _minus(theirs.entries, served)
    both = _latest(mine, theirs)
    kept = []
    for sent_us, bits in both.entries:
        known = _bits_at(theirs, sent_us)
        kept.append((sent_us, bits & ~(served & known)))
    return tuple([entry for entry in kept if entry[1]])


def _bits_at(row: Row, sent_us: int) -> int:
    for at, bits in row.entries:
        if at == sent_us:
            return bits
    return 0
