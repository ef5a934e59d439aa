"""Paper 2: Δ-causal delivery against three other algorithms, which are in `baselines`.

Start with `experiment.py`. `moving.py` is ours for clients that move from process to process (trap
T2.8), which those of the broker do not.
"""

from nearcast.papers.delta_causal.baselines import (
    Baseline,
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.papers.delta_causal.moving import MovingProcess

__all__ = [
    "Baseline",
    "KshemkalyaniSinghal",
    "MovingProcess",
    "PrakashRaynalSinghal",
    "RaynalSchiperToueg",
]
