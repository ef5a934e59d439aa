"""One broker node without input or output: bytes in, outboxes out.

The package handles sessions, subscriptions, delivery at QoS 0, 1 and 2, retained messages, wills,
expiry and quotas, and writes what must survive a restart to a journal. Time and randomness are
arguments. It opens no sockets, reads no clock, checks no passwords, writes no files
(`nearcast.server` does) and does not find other nodes (`nearcast.cluster` does).

Read next: `broker.py` (the calls of the server), `packets.py` (from bytes to packets), `publish/`
(the hot path: `handler.py`, `delivery.py`), `session/` (CONNECT and how sessions end),
`subscribe/`, `persistence/` (journal and replay), `peers/` (the sessions of other nodes).

`content/` has content subscriptions: spaces, events, positions, ranking, explanations. `retained/`
has the store of retained messages and, where configured, their deferred delivery.
"""

from nearcast.broker.access import LoginVerdict, OpenAccess
from nearcast.broker.broker import Broker
from nearcast.broker.content.spaces import SpaceSettings
from nearcast.broker.counters import Counters
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.settings import BrokerSettings, RetainedSettings

__all__ = [
    "Broker",
    "BrokerSettings",
    "Connection",
    "Counters",
    "LoginVerdict",
    "OpenAccess",
    "RetainedSettings",
    "Session",
    "SessionSubscription",
    "SpaceSettings",
]
