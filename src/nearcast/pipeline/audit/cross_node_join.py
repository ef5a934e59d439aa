"""Joins the rows of several nodes' logs: which rows belong together, and what judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from nearcast.eventlog.log_files import find_segments
from nearcast.pipeline.audit.causal import misordered_rows
from nearcast.pipeline.audit.hops import Allowance, judge_hops
from nearcast.pipeline.audit.logs import records_of, survey
from nearcast.pipeline.audit.places import judge_places
from nearcast.pipeline.audit.segments import Case, audit_segment

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection


class CrossNodeJoin(NamedTuple):
    """Rows of one kind, grouped by some columns, and the function that finds faults in a group."""

    what: str
    keys: list[str]
    find: Callable[[pd.DataFrame], list[dict[str, Any]]]


def cross_node_joins(case: Case) -> list[CrossNodeJoin]:
    """Return all joins of an audit; their rows come from `audit_segment`."""
    nodes, allowance = case.nodes, case.allowance
    return [
        CrossNodeJoin(
            "hop", ["origin", "target", "bucket"], lambda x: judge_hops(x, nodes, allowance)
        ),
        CrossNodeJoin("place", ["target", "bucket"], lambda x: judge_places(x, nodes, allowance)),
        CrossNodeJoin("causal", ["group", "stretch"], misordered_rows),
    ]


def audit_here(
    logs: Sequence[str],
    *,
    spaces: tuple[SpaceSection, ...] | None = None,
    allowance: Allowance | None = None,
) -> tuple[Case, list[dict[str, Any]]]:
    """Audit small logs in this process, without Spark; return the case and all findings."""
    segments = find_segments(logs)
    names = {segment.node for segment in segments}
    nodes = {name: survey([one for one in segments if one.node == name]) for name in names}
    case = Case(tuple(segments), nodes, allowance or Allowance(), spaces, "|".join(logs))
    parts = [part for one in segments if len(part := audit_segment(case, one))]
    if not parts:
        return case, []
    told = pd.concat(parts, ignore_index=True)
    found = records_of(told[told["what"] == "fault"])
    for join in cross_node_joins(case):
        for _, rows in told[told["what"] == join.what].groupby(join.keys):
            found += join.find(rows)
    return case, found
