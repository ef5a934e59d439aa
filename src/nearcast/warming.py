"""Compile every kernel and keep it on the disk: `python -m nearcast.warming`, part of set-up."""

from __future__ import annotations

import numpy as np


def warm_up() -> None:
    """Ask every compiled part something small; minutes the first time, seconds from then on."""
    from nearcast.index import warm_up as warm_up_index
    from nearcast.locality.kernels import warm_up as warm_up_plans
    from nearcast.locality.tracks import TrackCleaner
    from nearcast.matching.warming import warm_up as warm_up_matcher
    from nearcast.ordering import warm_up as warm_up_order
    from nearcast.retained import DecisionProcess, Rates, Weights, learn, shipped_policy, solve

    warm_up_index()
    warm_up_matcher()
    warm_up_plans()
    warm_up_order()
    one = np.zeros(1)
    TrackCleaner(1.0, 1.0).clean(one > 0, one.astype(np.int64), one, one)
    process = DecisionProcess(Rates(publish=0.5), Weights(omega=0.5, message_cost=5.0))
    solve(process)
    learn(process, seed=1)
    shipped_policy().waits(1.0, 0.1, 1.0, 0, 1)


if __name__ == "__main__":
    warm_up()
