"""The command line's requests to a network: list nodes, make one leave, forget one.

Plans and the like are shared by `nats_sharing.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from nats.errors import Error as NatsError

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem, KeyInUseError, KeyMissingError
from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster.cluster_keys import keys_of
from nearcast.server.cluster.nats_members import (
    LinkState,
    MemberRecord,
    Members,
    list_members,
    open_bucket,
)
from nearcast.server.cluster.nats_sharing import connected, now_ms, offer_plan
from nearcast.server.cluster.node_proofs import request_subject
from nearcast.server.cluster.signed_entries import SignedEntries

if TYPE_CHECKING:
    from nearcast.locality import NamedPlan, Plan


async def look(section: NetworkSection) -> list[MemberRecord]:
    """Return the entries of the listed nodes, without old problems of nodes that are gone.

    A node that was refused may have been fixed meanwhile: its peers will report it again if not.
    """
    async with connected(section) as client:
        members = await list_members(client, section)
    present = {one.name for one in members}
    return [replace(one, links=_current(one.links, present)) for one in members]


def _current(links: dict[str, LinkState], present: set[str]) -> dict[str, LinkState]:
    return {
        name: link if name in present else replace(link, problem="") for name, link in links.items()
    }


async def ask_to_leave(section: NetworkSection, name: str) -> None:
    """Ask a node to hand over its undelivered messages, leave the network, and stop."""
    async with connected(section) as client:
        await _find(client, section, name)
        keys = keys_of(section)
        data = b"leave" if keys is None else keys.request("leave", name, now_ms())
        try:
            await client.request(
                request_subject(section.name, name), data, timeout=client.timeout_s
            )
        except (NatsError, OSError):
            raise EnvironmentProblem(
                f"node {name} does not answer", where=f"network {section.name}"
            ) from None


async def forget_node(section: NetworkSection, name: str) -> None:
    """Mark a node that will not return as left: all nodes drop what they keep for it."""
    async with connected(section) as client:
        _check_away(await list_members(client, section), section.name, name)
        nodes = await open_bucket(client, section, expires=True)
        kept = await open_bucket(client, section, expires=False)
        entries = SignedEntries(keys_of(section), now_ms)
        await Members(client, nodes, kept, entries).mark_left(name, now_ms())


def _check_away(members: list[MemberRecord], network: str, name: str) -> None:
    """Raise an error unless the named node is disconnected and known to a listed node."""
    where, present = f"network {network}", {one.name for one in members}
    if name in present:
        todo = f"Let it leave: nearcast nodes --leave {name}"
        raise KeyInUseError(f"node {name} is there", where=where, todo=todo)
    if not members:
        todo = "Start one: it knows for whom something is kept."
        raise KeyMissingError("no node that is there", where=where, todo=todo)
    away = sorted({other for one in members for other in one.links} - present)
    if name not in away:
        expected = f"one that is away: {', '.join(away)}" if away else "one that is away; none is"
        raise KeyMissingError(f"no node '{name}'", where=where, expected=expected)


async def share_plan(section: NetworkSection, plan: Plan) -> NamedPlan:
    """Share a plan with the nodes; return it with the node of each leaf (`offer_plan`)."""
    return (await offer_plan(section, plan)).plan


async def _find(client: NatsConnection, section: NetworkSection, name: str) -> None:
    known = [one.name for one in await list_members(client, section)]
    if name not in known:
        raise KeyMissingError(
            f"no node '{name}'",
            where=f"network {section.name}",
            expected=f"one of {', '.join(known)}" if known else "",
        )
