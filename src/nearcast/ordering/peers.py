"""The algorithms that Δ-causal delivery is compared with.

All three were published for channels that lose nothing. Here they get what ours has: physical
times instead of counters, the same rule of expiry (a predecessor counts as settled when its
lifetime is over; what is older than lifetime plus skew is neither kept nor sent), the same rows
of (time, destinations), the same bytes, the same kind of kernels. What differs is only what
each of them keeps: see rows.py and sending.py.

Read next: nearcast/experiments/delta_causal.py.
"""

from __future__ import annotations

from nearcast.ordering.message import Algorithm
from nearcast.ordering.process import CausalProcess


class RaynalSchiperToueg(CausalProcess):
    """Raynal, Schiper and Toueg 1991: every message carries the matrix of all last sends.

    Row k holds, for each l, the time of the last message from k to l, equal times together.
    Nothing is removed. One body serves all destinations.
    """

    algorithm = Algorithm.RAYNAL_SCHIPER_TOUEG


class PrakashRaynalSinghal(CausalProcess):
    """Prakash, Raynal and Singhal 1996: every message carries direct dependencies only.

    Row k, read by columns, is their set of (k, time) per destination: the last messages to it
    that no later one stands in for. One body serves all destinations.
    """

    algorithm = Algorithm.PRAKASH_RAYNAL_SINGHAL


class KshemkalyaniSinghal(CausalProcess):
    """Kshemkalyani and Singhal 1996: nothing that could be known to be redundant is carried.

    For each destination a log is made in which that destination alone, of all destinations
    of the new message, is left where it still has to wait.
    """

    algorithm = Algorithm.KSHEMKALYANI_SINGHAL
