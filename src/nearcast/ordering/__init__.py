"""Δ-causal delivery: causes before effects, and nothing after its lifetime (paper 2).

What the broker's causal groups use, and nothing else. The algorithms that the paper compares with
are in `nearcast.papers.delta_causal`.

It does not send, retransmit, read a clock or measure one, and it does not protect against a
process that lies about its past in a way that could be true.

Reading it takes about an hour, in this order; 2,600 lines, of which the first five files, 1,000
lines, are the algorithm, and the others how it is fast:

1. docs/delta-causal.md, "The idea"; then delta_causal.py: the algorithm in words, and where its
   steps are.
2. process.py: the calls of a process (send, receive, advance), its checks and its outputs.
3. layout.py: what a process knows, and where it lies.
4. rows.py: what a delivery teaches (paper 2, receiving), and holding.py: what has to wait.
5. kernels.py: the four kernels that a process calls, made of the parts above and below.
6. sending.py: what a copy carries (paper 2, sending).
7. codec.py: the bytes; message.py: what a user sees of them.
8. When you change something: names.py, clocks.py, bits.py (and bits_compiled.py, the same as
   processor instructions).
"""

from nearcast.ordering.delta_causal import DeltaCausal
from nearcast.ordering.message import (
    CausalMessage,
    Deliver,
    Discard,
    DiscardReason,
    Output,
)
from nearcast.ordering.names import ProcessId
from nearcast.ordering.process import CausalProcess

__all__ = [
    "CausalMessage",
    "CausalProcess",
    "Deliver",
    "DeltaCausal",
    "Discard",
    "DiscardReason",
    "Output",
    "ProcessId",
]
