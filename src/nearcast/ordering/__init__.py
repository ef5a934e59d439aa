"""Δ-causal delivery: causes before effects, and nothing after its lifetime (paper 2).

What the broker's causal groups use, and nothing else. The algorithms that the paper compares with
are in `nearcast.papers.delta_causal`.

It does not send, retransmit, read a clock or measure one, and it does not protect against a
process that lies about its past in a way that could be true.

Read next: delta_causal.py for the algorithm, process.py for the calls, layout.py, codec.py,
rows.py, sending.py, holding.py and kernels.py for what they do, message.py for the bytes;
docs/delta-causal.md for the idea.
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
