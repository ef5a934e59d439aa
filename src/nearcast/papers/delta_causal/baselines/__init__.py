"""Baselines for paper 2: the algorithms that Δ-causal delivery is compared with.

The first is the paper's own, as it is written. The three others were published for channels that
lose nothing. Here they get what ours has: physical times instead of counters, the same rule of
expiry (a predecessor counts as settled when its lifetime is over; what is older than lifetime plus
skew is neither kept nor sent), the same rows of (time, destinations), the same bytes, the same
calls and the same way of waiting, compiled in the same way: only so are their times comparable.
What differs is what each of them keeps and carries.

Read next: `processes.py`; `as_written.py`, `matrices.py` and `logs.py` for the kernels.
"""

from nearcast.papers.delta_causal.baselines.processes import (
    Baseline,
    JangAsWritten,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)

__all__ = [
    "Baseline",
    "JangAsWritten",
    "KshemkalyaniSinghal",
    "PrakashRaynalSinghal",
    "RaynalSchiperToueg",
]
