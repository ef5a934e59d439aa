"""Control information taken apart into plain values, and put together again.

The rare way, for whoever wants to look at a message, and for messages whose names are numbered
otherwise than ours. The usual way never leaves the bytes.

Read next: kernels.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nearcast.ordering import layout
from nearcast.ordering.kernels import entries as calls
from nearcast.ordering.layout import entries_of, grown, new_state, numbers_in, set_words

Entry = tuple[int, int]
"""(sent_us, destinations as bits)."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a message says; processes are numbers, sets of them are bits."""

    algorithm: int
    width: int
    sender: int
    sent_us: int
    lifetime_us: int  # 0: that of the group
    destinations: int
    to: int
    rows: dict[int, tuple[Entry, ...]]
    waits: tuple[tuple[int, int], ...]

    def renumbered(self, number: list[int]) -> Account:
        """Return the same with each number k replaced by number[k]."""

        def bits(before: int) -> int:
            return sum(1 << number[k] for k in numbers_in(before))

        return replace(
            self,
            sender=number[self.sender],
            destinations=bits(self.destinations),
            to=number[self.to],
            rows={
                number[k]: tuple((at_us, bits(open_to)) for at_us, open_to in row)
                for k, row in self.rows.items()
            },
            waits=tuple((number[k], at_us) for k, at_us in self.waits),
        )


def read_account(data: bytes) -> Account:
    """Take apart the bytes of a message that has been judged to be good."""
    state = new_state(data[0] & 3)
    while calls().read(state, data) < 0:
        state = grown(state, int(state[layout.NEED_NUMBER]), int(state[layout.NEED_CAPACITY]))
    rows: dict[int, tuple[Entry, ...]] = {}
    for sender, at_us, bits in entries_of(state, layout.THEIRS, int(state[layout.M_COUNT])):
        rows[sender] = (*rows.get(sender, ()), (at_us, bits))
    waits, begin = int(state[layout.M_WAITS]), int(state[layout.WAITS])
    pairs = state[begin : begin + 2 * waits].reshape(waits, 2).tolist()
    first, words = int(state[layout.DESTINATIONS]), int(state[layout.WORDS])
    return Account(
        algorithm=data[0] & 3,
        width=data[0] >> 4,
        sender=int(state[layout.M_SENDER]),
        sent_us=int(state[layout.M_SENT]),
        lifetime_us=int(state[layout.M_OWN]),
        destinations=int.from_bytes(state[first : first + words].tobytes(), "little"),
        to=int(state[layout.M_TO]),
        rows=rows,
        waits=tuple((number, at_us) for number, at_us in pairs),
    )


def write_account(account: Account, payload: int) -> bytes:
    """Return the control information of a message with a payload of so many bytes."""
    entries = [(k, at_us, bits) for k in sorted(account.rows) for at_us, bits in account.rows[k]]
    everyone = account.destinations | 1 << account.sender
    for k, _, bits in entries:
        everyone |= bits | 1 << k
    for k, _ in account.waits:
        everyone |= 1 << k
    room = len(entries) + len(account.waits) + 1
    state = new_state(account.algorithm, everyone.bit_length() // 64 + 1, room)
    state[layout.WIDTH] = account.width
    state[layout.M_ALGORITHM] = account.algorithm
    state[layout.M_SENDER], state[layout.M_SENT] = account.sender, account.sent_us
    state[layout.M_OWN], state[layout.M_TO] = account.lifetime_us, account.to
    state[layout.M_COUNT], state[layout.M_WAITS] = len(entries), len(account.waits)
    set_words(state, int(state[layout.DESTINATIONS]), account.destinations)
    for i, (k, at_us, bits) in enumerate(entries):
        at = int(state[layout.THEIRS] + i * state[layout.STRIDE])
        state[at], state[at + 1] = k, at_us
        set_words(state, at + 2, bits)
    for i, wait in enumerate(account.waits):
        at = int(state[layout.WAITS]) + 2 * i
        state[at], state[at + 1] = wait
    out = np.zeros(128 + (20 + everyone.bit_length() // 4) * (room + 2), np.uint8)
    return out[: calls().write(state, out, payload)].tobytes()
