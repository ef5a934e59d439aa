"""The content overlay: peers in an R-tree of their own subscriptions (paper 3).

An `OverlayPeer` joins, subscribes, changes, leaves and publishes by messages alone, knows only its
neighbours, and repairs the tree after crashes and partitions. `elect` and its cost functions choose
which peer relays for which; `Cover` maintains a few boxes around a node's many subscriptions as
these are added and removed. `violations` checks a whole tree at once.

It does not send anything itself, read a clock, draw unseeded random numbers, know its runtime, or
recover events that the network lost. An event in flight while its branch of the tree is rebuilt may
be missed; later ones are not.

Read next: `bounds.py`, `election.py`, then `messages.py`.
"""

from nearcast.overlay.bounds import Bounds, Extent
from nearcast.overlay.cover import Cover
from nearcast.overlay.density import Density, GridDensity, MarginalDensity, UniformDensity
from nearcast.overlay.election import Costs, Method, elect, exact_cost, paper_cost
from nearcast.overlay.events import EventBatch, OverlayEvent
from nearcast.overlay.invariants import violations
from nearcast.overlay.messages import Address, Envelope, EventDelivery, Output, size_bytes
from nearcast.overlay.peer import OverlayPeer
from nearcast.overlay.settings import Climb, Placement, Settings
from nearcast.overlay.splitting import Split

__all__ = [
    "Address",
    "Bounds",
    "Climb",
    "Costs",
    "Cover",
    "Density",
    "Envelope",
    "EventBatch",
    "EventDelivery",
    "Extent",
    "GridDensity",
    "MarginalDensity",
    "Method",
    "Output",
    "OverlayEvent",
    "OverlayPeer",
    "Placement",
    "Settings",
    "Split",
    "UniformDensity",
    "elect",
    "exact_cost",
    "paper_cost",
    "size_bytes",
    "violations",
]
