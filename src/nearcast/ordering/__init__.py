"""Δ-causal delivery: causes before effects, and nothing after its lifetime.

`DeltaCausal` is what Nearcast uses. `RaynalSchiperToueg`, `PrakashRaynalSinghal` and
`KshemkalyaniSinghal` are the algorithms it is compared with; all four have the same calls,
the same encoding and the same rule of expiry.

It does not send, retransmit, read a clock or measure one, and it does not protect against a
process that lies about its past in a way that could be true.

Read next: delta_causal.py for the algorithm, process.py for waiting and releasing, layout.py,
rows.py, sending.py and holding.py for the kernels, message.py and codec.py for the bytes;
docs/delta-causal.md for the idea.
"""

from nearcast.ordering.account import Account
from nearcast.ordering.clocks import Offset, offset_of
from nearcast.ordering.delta_causal import DeltaCausal
from nearcast.ordering.message import (
    Algorithm,
    Counters,
    Deliver,
    Discard,
    Message,
    Output,
    Reason,
)
from nearcast.ordering.names import ProcessId
from nearcast.ordering.peers import (
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.ordering.process import CausalProcess

__all__ = [
    "Account",
    "Algorithm",
    "CausalProcess",
    "Counters",
    "Deliver",
    "DeltaCausal",
    "Discard",
    "KshemkalyaniSinghal",
    "Message",
    "Offset",
    "Output",
    "PrakashRaynalSinghal",
    "ProcessId",
    "RaynalSchiperToueg",
    "Reason",
    "offset_of",
]
