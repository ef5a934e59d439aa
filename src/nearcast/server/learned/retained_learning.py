"""Policy tables for retained messages, learned by a running broker in the background.

One topic at a time, in a thread, with a pause after each that limits learning to a small share of a
core. Learned tables last as long as the process; tables from `policies.json` have precedence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nearcast.broker import Broker

if TYPE_CHECKING:
    from nearcast.retained import DecisionProcess, TopicPolicy

log = logging.getLogger("nearcast.server")

PAUSE_S = 1.0
_SEED = 1


async def learn_tables(node: Broker, now_ms: Callable[[], int], pause_s: float = PAUSE_S) -> None:
    """Learn tables for ever, within the node's bounds; return if no topic asks for policies."""
    holding = node.deferred_retained
    while holding is not None:
        await asyncio.sleep(pause_s)
        wanted = holding.next_to_learn(now_ms())
        if wanted is None:
            continue
        topic, process = wanted
        policy = await asyncio.to_thread(_learned, process)
        if holding.adopt(topic, policy):
            node.counters.tables_learned += 1
            log.info("a table for '%s' was learned: waits in %s", topic, _share(policy))


def _learned(process: DecisionProcess) -> TopicPolicy:
    from nearcast.retained import TopicPolicy, learn

    return TopicPolicy(learn(process, seed=_SEED).actions, process.rates, process.weights)


def _share(policy: TopicPolicy) -> str:
    return f"{int(policy.actions.sum())} of {policy.actions.size} states"
