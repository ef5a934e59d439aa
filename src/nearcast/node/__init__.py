"""One broker node, without input or output: bytes in, outboxes out.

Does: sessions, subscriptions, delivery at QoS 0, 1 and 2, retained messages, wills, expiry,
quotas; and tells a journal what must survive. Time and randomness come in as arguments.

Will not: open sockets, read a clock, check passwords or write files (`nearcast.server` does);
talk to other nodes.

Read next: `node` (the calls), `intake` and `answers` (the hot path), `delivery` (who gets what,
and when), then `handshake`, `lifecycle`, `subscribing`; `journal` and `replay` are about survival.

Spaces: `spaces` (what is configured), `selections` (who selects what), `values` (what an event is),
`selective` and `choosing` (who gets it, who best), `quick` (the same for plain packets),
`positions` and `crossing` (who is where, and what they come near), `asking`, `explain`.

Retained messages that newcomers have to wait for: `holding`, on nodes that were told to.
"""

from nearcast.node.access import Access, OpenAccess, Verdict
from nearcast.node.connection import Connection
from nearcast.node.counters import Counters
from nearcast.node.node import Node
from nearcast.node.session import Session, Subscription
from nearcast.node.settings import NodeSettings, RetainedSettings
from nearcast.node.spaces import SpaceSettings

__all__ = [
    "Access",
    "Connection",
    "Counters",
    "Node",
    "NodeSettings",
    "OpenAccess",
    "RetainedSettings",
    "Session",
    "SpaceSettings",
    "Subscription",
    "Verdict",
]
