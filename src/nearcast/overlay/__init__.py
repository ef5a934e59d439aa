"""The content overlay: peers in an R-tree of their own subscriptions (paper 3).

A `Peer` joins, subscribes, changes, leaves and publishes by messages alone, knows only its
neighbours, and repairs the tree after crashes and partitions. `elect` and its cost functions choose
which peer relays for which; `summarise` turns a node's many subscriptions into few boxes, and
`Cover` maintains such a summary as subscriptions are added and removed. `OneHopPeer` is the simple
alternative that it is compared with; `violations` checks a whole tree at once.

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
from nearcast.overlay.onehop import OneHopEnvelope, OneHopPeer
from nearcast.overlay.peer import Peer
from nearcast.overlay.settings import Climb, Placement, Settings
from nearcast.overlay.splitting import Split
from nearcast.overlay.summary import FalsePositives, Summary, count_false_positives, summarise

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
    "FalsePositives",
    "GridDensity",
    "MarginalDensity",
    "Method",
    "OneHopEnvelope",
    "OneHopPeer",
    "Output",
    "OverlayEvent",
    "Peer",
    "Placement",
    "Settings",
    "Split",
    "Summary",
    "UniformDensity",
    "count_false_positives",
    "elect",
    "exact_cost",
    "paper_cost",
    "size_bytes",
    "summarise",
    "violations",
]
