"""Paper 2: ours, the paper's own form, and three other algorithms, which are in `baselines`.

Start with `experiment.py`. `transcriptions.py` has the listings in plain Python.
"""

from nearcast.papers.delta_causal.baselines import (
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
