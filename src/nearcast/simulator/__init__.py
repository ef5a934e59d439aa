"""The simulated world: a clock, a network that misbehaves, and actors, all from one seed.

What it does: runs any set of actors (cores without input or output) on virtual time over a network
with delay, loss, reordering, duplication, partition, crash and restart. The same seed gives the
same run, byte for byte; `World.digest()` proves it.

What it will not do: know what the actors are (brokers, overlay peers, clients), read a real clock,
open a socket, or start a thread.

Read next: `world.py` (the loop), then `network.py` (what may happen to a message).
"""

from nearcast.simulator.network import Delay, Link, Network, constant, exponential, uniform
from nearcast.simulator.world import Actor, ActorId, Instant, Send, World

__all__ = [
    "Actor",
    "ActorId",
    "Delay",
    "Instant",
    "Link",
    "Network",
    "Send",
    "World",
    "constant",
    "exponential",
    "uniform",
]
