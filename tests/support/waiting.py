"""Waiting for what other processes and threads bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nearcast.model.errors import EnvironmentProblem

WAIT_S = 60
"""How long to wait for what must come; on a good day nobody waits so long."""
START_S = 120
"""How long a node may take to start on a busy machine."""
END_S = 150
"""How long a broker may take to end: on SIGTERM it waits up to a minute for its event log."""


def wait_for(
    is_so: Callable[[], object],
    wait_s: float = WAIT_S,
    *,
    pause_s: float = 0.02,
    said: Callable[[], object] | None = None,
) -> None:
    """Ask until it is so; fail after `wait_s`, with what `said` returns then.

    A NATS that is busy may ask for patience (`EnvironmentProblem`): that is not the end.
    """
    deadline, last = time.monotonic() + wait_s, "waited too long"
    while True:
        try:
            if is_so():
                return
        except EnvironmentProblem as problem:
            last = f"waited too long: {problem}"
        assert time.monotonic() < deadline, last if said is None else said()
        time.sleep(pause_s)


async def until(is_so: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Ask until it is so, while the event loop runs on; `TimeoutError` after `wait_s`."""
    async with asyncio.timeout(wait_s):
        while not is_so():  # noqa: ASYNC110 - several things may bring it about
            await asyncio.sleep(0.005)
