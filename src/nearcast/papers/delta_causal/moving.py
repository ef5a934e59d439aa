"""Processes whose clients move from one to another, and take their causal past along (trap T2.8).

Nodes of a network have no use for it: a client's session, and so its causal past, stays at one node
whichever node it connects to.
"""

from __future__ import annotations

from nearcast.kernels import entry_point, inner
from nearcast.ordering import DeltaCausal, layout
from nearcast.ordering.bits import bit_at
from nearcast.ordering.codec import read_body, read_word
from nearcast.ordering.kernels import instant_us, pass_to, straight
from nearcast.ordering.layout import (
    BAD_LENGTH,
    BAD_WIDTH,
    CAPACITY,
    CLOCK,
    COUNT,
    DELIVERED,
    DESTINATIONS,
    GROW,
    HIGHEST_NUMBER,
    M_COUNT,
    M_SENDER,
    M_SENT,
    M_WIDTH,
    ME,
    NEED_CAPACITY,
    NEVER,
    NOT_PAST,
    SKEW,
    STRIDE,
    TABLE,
    THEIRS,
    TRUNCATED,
    WIDTH,
    WORDS,
    Buffer,
    State,
)
from nearcast.ordering.message import complaint
from nearcast.ordering.rows import drop_dead, is_empty, merge_news
from nearcast.ordering.sending import put_fixed
from nearcast.papers.delta_causal.baselines.bodies import put_table

_HEAD_BYTES = 8  # width and instant


class MovingProcess(DeltaCausal):
    """A process of Δ-causal order that hands on and takes over the past of a client."""

    def past(self, now: float) -> bytes:
        """Return all that is known here, for the process that a client moves to.

        O(n e) bytes. It stays of use for lifetime plus skew.
        """
        now = self._float(now)
        peek = self._peek
        room = 64 + (peek[layout.COUNT] + 1) * (24 + 8 * peek[layout.WORDS])
        if room > len(self._out):
            self._use_bytes(room)
        return self._view[: straight(write_past)(self._state, self._out, now)].tobytes()

    def adopt(self, past: bytes, now: float) -> None:
        """Take over the past of a client that has moved here, before sending on its behalf.

        Messages of that past which are still on their way to us stay known as such, so that
        whoever hears from us and answers us does not overtake them. Raises
        `PeerProtocolError` and changes nothing if `past` is damaged or from the future.
        """
        now = self._float(now)
        result = straight(read_past)(self._state, past, now)
        while result == layout.GROW:
            self._make_room(result, now)
            result = straight(read_past)(self._state, past, now)
        if result < 0:
            raise complaint(result)


@entry_point("int64[::1], uint8[::1], float64")
def write_past(state: State, out: Buffer, now: float) -> int:
    """Write width, instant and all rows; return the length."""
    now_us = instant_us(state, now)
    pass_to(state, now_us)
    drop_dead(state, now_us)
    out[0] = state[WIDTH]
    at = put_fixed(out, 1, max(now_us, state[CLOCK] + 1), _HEAD_BYTES - 1)
    return put_table(out, at, state)


@entry_point("int64[::1], Bytes(uint8, 1, 'C'), float64")
def read_past(  # noqa: PLR0911 - one exit per complaint
    state: State, data: bytes, now: float
) -> int:
    """Merge a past written by `write_past`; return 0, or what is wrong with it."""
    now_us, size = instant_us(state, now), len(data)
    if size <= _HEAD_BYTES:
        return TRUNCATED
    state[M_WIDTH], state[M_SENT] = data[0] & 0xFF, read_word(data, 1, _HEAD_BYTES - 1)
    if state[M_WIDTH] < 2 or state[M_WIDTH] > 7:
        return BAD_WIDTH
    if state[M_SENT] > now_us + state[SKEW] + 1:
        return NOT_PAST
    at = read_body(state, data, _HEAD_BYTES, size, HIGHEST_NUMBER)
    if at < 0:
        return at
    if at != size:
        return BAD_LENGTH
    state[NEED_CAPACITY] = state[COUNT] + state[M_COUNT] + 2
    if state[NEED_CAPACITY] > state[CAPACITY]:
        return GROW
    pass_to(state, now_us)
    drop_dead(state, now_us)
    take_over(state, now_us)
    return 0


@inner
def take_over(state: State, now_us: int) -> None:
    """Merge the past at hand. It says nothing of who else knows it: nobody has sent it.

    Entries of which we may be a destination keep us until they are delivered here (T2.2).
    """
    stride, words, me = state[STRIDE], state[WORDS], state[ME]
    for entry in range(state[THEIRS], state[THEIRS] + state[M_COUNT] * stride, stride):
        state[CLOCK] = max(state[CLOCK], state[entry + 1])
    state[M_SENDER], state[M_SENT] = me, -NEVER
    for w in range(words):
        state[state[DESTINATIONS] + w] = 0
    merge_news(state, now_us)
    table, delivered, at, bit = state[TABLE], state[DELIVERED], 2 + (me >> 6), bit_at(me & 63)
    end, out = table + state[COUNT] * stride, table
    for entry in range(table, end, stride):
        if state[entry + 1] <= state[delivered + state[entry]]:
            state[entry + at] &= ~bit
        after = entry + stride
        last = after == end or state[after] != state[entry]
        if last or not is_empty(state, entry + 2, words):
            for i in range(stride):
                state[out + i] = state[entry + i]
            out += stride
    state[COUNT] = (out - table) // stride
