"""Several nodes as one broker: links, what nodes tell each other, and one node's part in it.

Does: say what travels between nodes and what a node does with what arrives. Publications cross as
MQTT packets between sessions (`nearcast.node.peering`); the rest are typed messages.

Will not: open a connection, find out who is there (the runtime says so), or read a clock.

Read next: `links.py`, `neighbours.py`, `messages.py`, `mesh.py`; for events and subscriptions with
a place `geography.py` and `layout.py`.
"""

from nearcast.network.layout import NamedPlan
from nearcast.network.links import Link, LinkTiming
from nearcast.network.mesh import Mesh
from nearcast.network.peer import Peer

__all__ = ["Link", "LinkTiming", "Mesh", "NamedPlan", "Peer"]
