"""Finding out whether a peer can be reached, or has ended for certain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

log = logging.getLogger("nearcast.overlay")

ONCE = (0.0,)
PROBES = (0.0, 0.05, 0.2, 0.5)
"""Pauses before attempts, in seconds: an ending process may accept before its listener goes."""


def address_of(name: str) -> tuple[str, int]:
    """Return host and port from the name of a peer or from an address.

    >>> address_of("[::1]:7000/5f3a01"), address_of("10.0.0.7:7000")
    (('::1', 7000), ('10.0.0.7', 7000))
    """
    host, _, port = name.partition("/")[0].rpartition(":")
    return host.strip("[]"), int(port)


class Dialed(NamedTuple):
    """The outcome: the name that answers at the peer's address, "" for none."""

    found: str
    has_ended: bool
    """Nothing listens at the address, or another start of a peer does."""


async def dial(
    connect: Callable[[str], Awaitable[str]], peer: str, pauses_s: Sequence[float]
) -> Dialed:
    """Connect to a peer, once after each pause until it is known what became of it."""
    for pause_s in pauses_s:
        await asyncio.sleep(pause_s)
        try:
            found = await connect(peer)
        except (OSError, ValueError, TimeoutError) as problem:
            log.info("peer %s is not reached: %s", peer, str(problem) or "no answer in time")
            if isinstance(problem, ConnectionRefusedError):
                return Dialed("", has_ended=True)
            continue
        if found != peer:
            log.info("peer %s is gone: %s answers there now", peer, found)
        return Dialed(found, has_ended=found != peer)
    return Dialed("", has_ended=False)
