"""Δ-causal multicast with minimal control information (Jang; paper 2, "Sending").

What a process knows of messages that may not have been delivered everywhere is a row per
sender: (time, destinations still open). Sending takes the destinations of the new message out
of all rows, because the new message stands in for the old ones there; what was taken out is
what the copy for that destination has to wait for (`stand_in` in sending.py). Delivering
merges the sender's rows, the message itself entered first (`absorb` in rows.py).

The last entry of a row stays as a marker when nobody is left in it: it says "of this sender I
know everything up to here", which lets the merge recognise what the other side has dropped.
A marker goes when it expires (trap T2.5). Entries are kept for lifetime plus skew, because a
slower clock elsewhere may still accept the message.

Two things go beyond the paper; both only leave rows out of a copy:

    1. A row that its destination knows is not repeated. Whatever a message carried is known to
       its sender; and to each of its destinations, before anything that follows the message
       is delivered there, or else the message has expired there and so has the row: that is
       what Δ-causal order promises. (Expired for every clock: so only rows older than that
       message by at least the skew count as known.) A row that has only lost destinations
       since then is known all the more.
    2. Rows that are markers and nothing else stay at home: they save others less than they cost.

Read next: sending.py, rows.py.
"""

from __future__ import annotations

from nearcast.ordering import kernels
from nearcast.ordering.process import CausalProcess


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

    kernels = staticmethod(kernels.entries)
