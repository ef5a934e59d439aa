"""The compared algorithms as processes. Their messages are received as they were sent, or as bytes.

Read next: kernels.py.
"""

from __future__ import annotations

from nearcast.model.errors import MisuseError
from nearcast.ordering import CausalProcess, ProcessId
from nearcast.ordering.process import DEFAULT_SKEW_S
from nearcast.papers.delta_causal.baselines import as_written, kernels


class Baseline(CausalProcess):
    """An algorithm that ours is compared with; its processes are numbers."""

    kernels = staticmethod(kernels.entries)
    sets = 1

    def __init__(
        self, process: ProcessId, lifetime: float, *, skew: float = DEFAULT_SKEW_S
    ) -> None:
        if isinstance(process, str):
            raise MisuseError(f"process {process!r}", expected="a number")
        super().__init__(process, lifetime, skew=skew)


class JangAsWritten(Baseline):
    """Jang 2005, the paper's own form: every copy carries all of CI, and its own DC.

    Ours without the two rules that leave rows out.
    """

    kernels = staticmethod(as_written.entries)
    sets = 2


class RaynalSchiperToueg(Baseline):
    """Raynal, Schiper and Toueg 1991: every message carries the matrix of all last sends.

    Row k holds, for each l, the time of the last message from k to l, equal times together.
    Nothing is removed. One body serves all destinations.
    """

    kind = kernels.RAYNAL_SCHIPER_TOUEG


class PrakashRaynalSinghal(Baseline):
    """Prakash, Raynal and Singhal 1996: every message carries direct dependencies only.

    Row k, read by columns, is their set of (k, time) per destination: the last messages to it
    that no later one stands in for. One body serves all destinations.
    """

    kind = kernels.PRAKASH_RAYNAL_SINGHAL


class KshemkalyaniSinghal(Baseline):
    """Kshemkalyani and Singhal 1996: nothing that could be known to be redundant is carried.

    For each destination a log is made in which that destination alone, of all destinations
    of the new message, is left where it still has to wait.
    """

    kind = kernels.KSHEMKALYANI_SINGHAL
