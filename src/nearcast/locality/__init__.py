"""The Q+R plan of a broker network, built from how people move (paper 0), and all that uses it.

This package builds the Q+R plan, finds the leaves of events and subscriptions, keeps registrations,
hands them over without loss, moves a cluster from one plan to the next, and assigns leaves to a
limited number of brokers.

It does not find slow regions in bulk (the rules are in `slow_regions.py`; the pipeline applies them
to large data), open a socket, read a clock, or match attributes other than the two coordinates.

Read next: `layout/plan.py`, then `registration/node.py`.
"""

from nearcast.locality.layout.balancing import (
    Assignment,
    assign_leaves,
    movement_flows,
    naive_assignment,
)
from nearcast.locality.layout.changes import PlanDiff, adapted, plan_diff
from nearcast.locality.layout.drawing import draw_layouts, draw_plan, plan_geojson
from nearcast.locality.layout.grid import CellCounts, Grid
from nearcast.locality.layout.node_changes import NodeChange, node_changes
from nearcast.locality.layout.plan import Leaf, Plan
from nearcast.locality.layout.planfile import load_plan, plan_from_json, plan_to_json, save_plan
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.gateway import Gateway
from nearcast.locality.registration.messages import Timing
from nearcast.locality.registration.plan_assignment import NamedPlan, PlanAssignment
from nearcast.locality.registration.plan_sharing import plan_for_nodes
from nearcast.locality.registration.retry import RetryUntilAcked

__all__ = [
    "Assignment",
    "CellCounts",
    "Gateway",
    "Grid",
    "Leaf",
    "NamedPlan",
    "NodeChange",
    "Plan",
    "PlanAssignment",
    "PlanDiff",
    "Rect",
    "RetryUntilAcked",
    "Timing",
    "adapted",
    "assign_leaves",
    "draw_layouts",
    "draw_plan",
    "load_plan",
    "movement_flows",
    "naive_assignment",
    "node_changes",
    "plan_diff",
    "plan_for_nodes",
    "plan_from_json",
    "plan_geojson",
    "plan_to_json",
    "save_plan",
]
