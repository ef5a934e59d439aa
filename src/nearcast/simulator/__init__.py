"""The simulated world: a virtual clock, a faulty network and actors, all from one seed.

It runs any set of actors (cores without input or output) on virtual time over a network with delay,
loss, reordering, duplication, partitions, crashes and restarts. The same seed gives the same run,
byte for byte; `World.digest()` proves it.

The world does not know what the actors are (brokers, overlay peers, clients), reads no real clock,
opens no socket and starts no thread.

Read next: `world.py` (the loop), `network.py` (faults of links), `mqtt_node.py` (brokers as actors)
and `movers.py` (moving users).
"""

from nearcast.simulator.network import (
    Delay,
    SimulatedLink,
    SimulatedNetwork,
    constant,
    exponential,
    uniform,
)
from nearcast.simulator.world import Send, World

__all__ = [
    "Delay",
    "Send",
    "SimulatedLink",
    "SimulatedNetwork",
    "World",
    "constant",
    "exponential",
    "uniform",
]
