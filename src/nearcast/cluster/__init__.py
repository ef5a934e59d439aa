"""Several nodes that act as one broker: links, messages between nodes, and one node's part in it.

Does: define what travels between nodes, and handle what arrives. Publications travel as MQTT
packets of peer sessions (`nearcast.broker.peers.sessions`); everything else is a typed message.

Does not: open connections, discover nodes (the runtime names them), or read a clock.

Read next: `messages.py`, `links.py`, `peer_registry.py`, `part.py`, `cluster.py`; for events and
subscriptions with a position `spatial_routing.py`.
"""

from nearcast.cluster.cluster import Cluster
from nearcast.cluster.links import LinkTiming
from nearcast.locality.registration.plan_assignment import NamedPlan

__all__ = ["Cluster", "LinkTiming", "NamedPlan"]
