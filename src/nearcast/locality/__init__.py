"""The plan of a broker network laid out by how people move (paper 0), and all that follows from it.

What it does: builds the Q+R plan, finds the leaves of events and subscriptions, routes step by
step, keeps registrations, hands them over without loss, moves a network from one plan to the next,
and shares leaves out over few brokers.

What it will not do: find slow regions in bulk (the rules are in `slow_regions.py`, the bulk is the
pipeline's), open a socket, read a clock, or match attributes other than the two coordinates.

Read next: `plan.py`, then `registry.py`, then `gateway.py` and `holder.py` (the distributed form).
"""

from nearcast.locality.balancing import (
    Assignment,
    assign_leaves,
    movement_flows,
    naive_assignment,
)
from nearcast.locality.changes import PlanDiff, adapted, plan_diff
from nearcast.locality.drawing import draw_plan, plan_geojson
from nearcast.locality.gateway import Gateway
from nearcast.locality.grid import Counts, Grid
from nearcast.locality.holder import Holder
from nearcast.locality.messages import Deliver, Event, Outgoing, Timing
from nearcast.locality.mobility import Mobility, regions_of_class
from nearcast.locality.plan import Leaf, Plan
from nearcast.locality.planfile import load_plan, plan_from_json, plan_to_json, save_plan
from nearcast.locality.pursuit import Pursuit
from nearcast.locality.rect import Rect
from nearcast.locality.registry import Delivery, Handover, Registration, Registry, decide
from nearcast.locality.rollout import Rollout
from nearcast.locality.routing import Route, Router
from nearcast.locality.spool import Spool
from nearcast.locality.view import PlanView

__all__ = [
    "Assignment",
    "Counts",
    "Deliver",
    "Delivery",
    "Event",
    "Gateway",
    "Grid",
    "Handover",
    "Holder",
    "Leaf",
    "Mobility",
    "Outgoing",
    "Plan",
    "PlanDiff",
    "PlanView",
    "Pursuit",
    "Rect",
    "Registration",
    "Registry",
    "Rollout",
    "Route",
    "Router",
    "Spool",
    "Timing",
    "adapted",
    "assign_leaves",
    "decide",
    "draw_plan",
    "load_plan",
    "movement_flows",
    "naive_assignment",
    "plan_diff",
    "plan_from_json",
    "plan_geojson",
    "plan_to_json",
    "regions_of_class",
    "save_plan",
]
