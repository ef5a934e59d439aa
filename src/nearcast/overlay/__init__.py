"""The content overlay: peers in an R-tree of their own subscriptions (paper 3).

What it does: `Peer` joins, subscribes, changes, leaves and publishes by messages alone, knows its
neighbours only, and repairs the tree after crashes and partitions. `elect` and its costs choose who
relays for whom; `summarise` turns a node's many subscriptions into few boxes, `Cover` keeps such a
summary while they come and go; `OneHopPeer` is the simple alternative that it is compared with;
`violations` checks a whole tree at once.

What it will not do: send anything itself, read a clock, draw unseeded random numbers, know what
runs it, or make up for events that the network lost. An event that is under way while its branch of
the tree is being rebuilt may be missed; later ones are not.

Read next: `bounds.py`, `election.py`, then `messages.py`.
"""

from nearcast.overlay.bounds import Bounds, Extent
from nearcast.overlay.cover import Cover
from nearcast.overlay.density import Density, GridDensity, MarginalDensity, UniformDensity
from nearcast.overlay.election import Costs, Method, elect, exact_cost, paper_cost
from nearcast.overlay.events import Batch, Event
from nearcast.overlay.invariants import violations
from nearcast.overlay.messages import Address, Delivery, Envelope, Output, size_bytes
from nearcast.overlay.onehop import OneHopEnvelope, OneHopPeer
from nearcast.overlay.peer import Peer
from nearcast.overlay.settings import Climb, Placement, Settings
from nearcast.overlay.splitting import Split
from nearcast.overlay.summary import FalsePositives, Summary, count_false_positives, summarise

__all__ = [
    "Address",
    "Batch",
    "Bounds",
    "Climb",
    "Costs",
    "Cover",
    "Delivery",
    "Density",
    "Envelope",
    "Event",
    "Extent",
    "FalsePositives",
    "GridDensity",
    "MarginalDensity",
    "Method",
    "OneHopEnvelope",
    "OneHopPeer",
    "Output",
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
