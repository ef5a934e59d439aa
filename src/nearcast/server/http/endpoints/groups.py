"""Groups: share groups and their members, causal groups and what waits in them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nearcast.broker.session.session import PEER_PREFIX
from nearcast.server.http.endpoint import Call, endpoint
from nearcast.server.http.endpoints.clients import Limit
from nearcast.server.http.endpoints.slices import smallest
from nearcast.server.http.gathering import added, merged, rows_by

_MOST_MEMBERS = 100


class ShareGroupsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which group on; the cursor is that of the last answer."""

    limit: Limit = 100
    cursor: Annotated[str, msgspec.Meta(max_length=4_000)] = ""


class ShareGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A share group: at most 100 of its members are named, those with conditions are counted."""

    group: str
    filter: str
    members: list[str]
    member_count: int
    with_conditions: int


class ShareGroupPage(msgspec.Struct, frozen=True):
    """Some share groups in alphabetical order."""

    items: list[ShareGroupRow]
    total: int
    next: str | None


class CausalGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A causal group of this node."""

    group: str
    topics: str
    lifetime_s: float
    waiting: int
    waited: int
    expired: int
    discarded: int
    skew_violations: int


class CausalGroupList(msgspec.Struct, frozen=True):
    """All causal groups, and why messages were discarded, of all groups together."""

    items: list[CausalGroupRow]
    discarded: dict[str, int]


def _one_group(rows: list[ShareGroupRow]) -> ShareGroupRow:
    """Return a group with the members of all workers, without those that stand for a worker."""
    members = dict.fromkeys(one for row in rows for one in row.members)
    own = [one for one in members if not one.startswith(PEER_PREFIX)]
    count = sum(
        row.member_count - sum(one.startswith(PEER_PREFIX) for one in row.members) for row in rows
    )
    with_conditions = sum(row.with_conditions for row in rows)
    return ShareGroupRow(
        group=rows[0].group,
        filter=rows[0].filter,
        members=own[:_MOST_MEMBERS],
        member_count=count,
        with_conditions=with_conditions,
    )


_OF_ALL = rows_by(lambda row: f"{row.group}\n{row.filter}", _one_group)


@endpoint("GET", "/api/share-groups", query=ShareGroupsQuery, gather=_OF_ALL)
async def share_groups(call: Call) -> ShareGroupPage:
    """Return the share groups with their members; a member may be another node."""
    query: ShareGroupsQuery = call.query
    everything = call.site.node.inspection.share_groups()
    found, _ = await smallest(
        everything,
        query.limit + 1,
        lambda one: "\n".join(one.key),
        lambda one: "\n".join(one.key) > query.cursor,
    )
    shown = found[: query.limit]
    rows = [
        ShareGroupRow(
            group=one.key[0],
            filter=one.key[1],
            members=list(one.members)[:_MOST_MEMBERS],
            member_count=len(one.members) + one.conditional,
            with_conditions=one.conditional,
        )
        for one in shown
    ]
    following = "\n".join(shown[-1].key) if len(found) > query.limit else None
    return ShareGroupPage(rows, len(everything), following)


def _same_groups(lists: list[list[CausalGroupRow]]) -> list[CausalGroupRow]:
    """Return each causal group once, with the messages of all workers."""
    counts = ("waiting", "waited", "expired", "discarded", "skew_violations")
    return [
        msgspec.structs.replace(
            rows[0], **{name: sum(getattr(one, name) for one in rows) for name in counts}
        )
        for rows in zip(*lists, strict=True)
    ]


@endpoint("GET", "/api/causal-groups", gather=merged(items=_same_groups, discarded=added))
def causal_groups(call: Call) -> CausalGroupList:
    """Return the causal groups: how many messages wait, waited, and were discarded."""
    network = call.site.sources.network()
    if network is None:
        return CausalGroupList([], {})
    causal = network.mesh.causal
    rows = [
        CausalGroupRow(
            group=one.name,
            topics=one.topics,
            lifetime_s=one.lifetime_s,
            waiting=one.waiting,
            waited=one.counts.waited,
            expired=one.counts.expired,
            discarded=one.counts.discarded,
            skew_violations=one.counts.skew_violations,
        )
        for one in network.mesh.causal_groups()
    ]
    return CausalGroupList(rows, dict(causal.discarded))
