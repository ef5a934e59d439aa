"""What the command line shares with all nodes: a plan or a schedule of plans, policies, histograms.

Each is a value of `nats_settings.py`. A value is checked before it is written; of two operators who
write at the same time, the slower one gets an error, and its write has no effect.

Read next: `nearcast/locality/registration/plan_sharing.py`, `nearcast/server/learned/artefacts.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.config import NetworkSection
from nearcast.locality.schedule.plan_schedule import ScheduledPlans
from nearcast.model.errors import FileFormatError, KeyInUseError, KeyMissingError, MisuseError
from nearcast.nats.connection import COMMAND_TIMEOUT_S, NatsConnection, close, connect
from nearcast.server.cluster.cluster_keys import keys_of
from nearcast.server.cluster.nats_members import MemberRecord, list_members, open_bucket
from nearcast.server.cluster.nats_settings import (
    HISTOGRAMS,
    PLAN,
    POLICIES,
    SCHEDULE,
    SharedSettings,
)
from nearcast.server.cluster.sealed_answers import SealedQuestion

if TYPE_CHECKING:
    from nearcast.locality import Plan
    from nearcast.locality.registration.plan_assignment import NamedPlan

_PLACES_S = 1.0  # so long a node may take to say where its clients are
_decode_places = msgspec.json.Decoder(list[tuple[float, float]]).decode


@asynccontextmanager
async def connected(section: NetworkSection) -> AsyncGenerator[NatsConnection, None]:
    """Yield a connection for one command."""
    client = await connect(section, "nearcast nodes", timeout_s=COMMAND_TIMEOUT_S)
    try:
        yield client
    finally:
        await close(client)


def now_ms() -> int:
    """Return the current time."""
    return int(time.time() * 1000)


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """A plan with a node for each leaf, beside the plan in force."""

    plan: NamedPlan
    last: NamedPlan | None  # in force, or about to be; None: no plan was shared
    members: tuple[MemberRecord, ...]
    version: int  # of the shared value that the offer would replace

    @property
    def is_in_force(self) -> bool:
        """Whether the cluster has this very plan."""
        return self.plan == self.last

    def notes(self) -> list[str]:
        """Return what the operator should know: nodes that are away, and a change under way."""
        present = {one.name for one in self.members}
        away = sorted(set(self.plan.nodes) - present)
        lines = [f"{name} is away: another node stands in until it is back." for name in away]
        last = 0 if self.last is None else self.last.version
        late = [one.name for one in self.members if one.plan < last] + sorted(
            _away(self.members) - {*away}
        )
        if last and not self.is_in_force and (late or away):
            names = ", ".join(sorted({*late, *away}))
            lines.append(
                f"Plan {last} is still being taken up ({names}); plan {self.plan.version} follows."
            )
        return lines


async def look_at_plan(
    section: NetworkSection, plan: Plan, *, reassigns: bool = False
) -> PlanOffer:
    """Return what `offer_plan` would share, and the plan in force. Changes nothing."""
    async with connected(section) as client:
        return await _offer(client, section, plan, reassigns=reassigns)


async def offer_plan(
    section: NetworkSection, plan: Plan, *, reassigns: bool = False, renumbers: bool = False
) -> PlanOffer:
    """Share a plan with the nodes, each leaf with its node (`plan_for_nodes`).

    A plan that is no newer than the one in force is a KeyInUseError, unless it is that very plan,
    or `renumbers`: then it gets the next number. If another operator shares a plan at the same
    time, one of the two gets a KeyInUseError. A cluster without nodes is a KeyMissingError.
    """
    async with connected(section) as client:
        offer = await _offer(client, section, plan, reassigns=reassigns)
        shared = SharedSettings(client, await open_bucket(client, section, expires=False), section)
        if offer.is_in_force:
            await _end_schedule(shared)
            return offer
        if offer.last is not None and plan.version <= offer.last.version:
            if not renumbers:
                raise _outdated(section, plan, offer.last)
            plan = plan.numbered(offer.last.version + 1)
            offer = await _offer(client, section, plan, reassigns=reassigns)
        await _put_plan(shared, offer)
        await _end_schedule(shared)
        return offer


async def _put_plan(shared: SharedSettings, offer: PlanOffer) -> None:
    await shared.put(PLAN, offer.plan.to_bytes(), at_ms=now_ms(), expected=offer.version)


async def _end_schedule(shared: SharedSettings) -> None:
    """End a schedule: an operator has shared a plan that is to stay."""
    if await shared.version(SCHEDULE):
        await shared.put(SCHEDULE, b"", at_ms=now_ms())


async def share_schedule(section: NetworkSection, plans: ScheduledPlans) -> PlanOffer:
    """Share a schedule and the plan that is due now; nodes make its changes from then on.

    It replaces a schedule or a plan that was shared before.
    """
    async with connected(section) as client:
        shared = SharedSettings(client, await open_bucket(client, section, expires=False), section)
        await shared.put(SCHEDULE, plans.to_bytes(), at_ms=now_ms())
        offer = await make_scheduled_change(client, section, plans, now_ms())
        assert offer is not None  # nothing was made before: a change is due
        return offer


async def make_scheduled_change(
    client: NatsConnection, section: NetworkSection, plans: ScheduledPlans, now: int
) -> PlanOffer | None:
    """Share the plan that a schedule has for this time, if that is due; None if it is not.

    Each node calls this. Of several that do so at once one wins; the others get a KeyInUseError,
    and nothing changes. A node that is lost between the two writes leaves a change that another
    node makes again: the same plan under a new number, which moves nobody.
    """
    change = plans.schedule.due(now, plans.made_ms)
    if change is None:
        return None
    shared = SharedSettings(client, await open_bucket(client, section, expires=False), section)
    version = await shared.version(SCHEDULE)
    current = ScheduledPlans.from_bytes((await shared.get(SCHEDULE)).data)
    if current is None or current.schedule.due(now, current.made_ms) != change:
        return None  # the schedule has ended or is another one, or the change is made
    last = await _plan_in_force(shared)
    plan = plans.plans[change.plan].numbered(1 if last is None else last.version + 1)
    offer = await _offer(client, section, plan, reassigns=False)
    await _put_plan(shared, offer)
    made = replace(current, made_ms=change.at_ms)
    await shared.put(SCHEDULE, made.to_bytes(), at_ms=now_ms(), expected=version)
    return offer


async def _offer(
    client: NatsConnection, section: NetworkSection, plan: Plan, *, reassigns: bool
) -> PlanOffer:
    from nearcast.locality import plan_for_nodes

    members = tuple(await list_members(client, section))
    if not members:
        raise KeyMissingError("no nodes", where=f"network {section.name}")
    shared = SharedSettings(client, await open_bucket(client, section, expires=False), section)
    version, last = await shared.version(PLAN), await _plan_in_force(shared)
    named = await asyncio.to_thread(  # a node that makes a change by the clock serves clients
        plan_for_nodes,
        plan,
        [one.name for one in members],
        away=_away(members),
        last=last,
        reassigns=reassigns,
        clients=await _clients(client, section, members) if last is None else None,
    )
    return PlanOffer(named, last, members, version)


async def _clients(
    client: NatsConnection, section: NetworkSection, members: Sequence[MemberRecord]
) -> dict[str, list[tuple[float, float]]]:
    """Return where clients of each node are; a node that does not answer is left out."""
    from nearcast.server.cluster.node_proofs import PLACES_ASKED, request_subject

    keys = keys_of(section)

    async def ask(name: str) -> list[tuple[float, float]]:
        try:
            subject = request_subject(section.name, name)
            if keys is None:
                answer = await client.request(subject, PLACES_ASKED, timeout=_PLACES_S)
                return _decode_places(answer.data)
            question = SealedQuestion(keys, PLACES_ASKED.decode(), name, now_ms())
            answer = await client.request(subject, question.data, timeout=_PLACES_S)
            return _decode_places(question.read(answer.data) or b"")
        except (NatsError, msgspec.MsgspecError):  # a node of an earlier release is silent
            return []

    found = await asyncio.gather(*(ask(one.name) for one in members))
    return {one.name: places for one, places in zip(members, found, strict=True)}


def _away(members: tuple[MemberRecord, ...]) -> set[str]:
    """Return the nodes that others know and that are not listed."""
    return {other for one in members for other in one.links} - {one.name for one in members}


async def _plan_in_force(shared: SharedSettings) -> NamedPlan | None:
    """Return the plan that is shared; None if there is none, or one that nodes refuse."""
    from nearcast.locality import NamedPlan

    try:
        return NamedPlan.from_bytes((await shared.get(PLAN)).data)
    except (KeyMissingError, FileFormatError, MisuseError):
        return None


def _outdated(section: NetworkSection, plan: Plan, last: NamedPlan) -> KeyInUseError:
    return KeyInUseError(
        f"plan {plan.version}",
        where=f"network {section.name}",
        expected=f"a plan after {last.version}, which the cluster has",
        todo="See what it would change: nearcast plan diff FILE. To share it all the same, set "
        f'"version" in the file to {last.version + 1}',
    )


async def share_policies(section: NetworkSection, text: str) -> int:
    """Share the text of a policy file with all nodes; return its version.

    An invalid text is a FileFormatError, and nothing changes.
    """
    from nearcast.retained import policies_from_text

    policies_from_text(text, "policies")
    return await _put(section, POLICIES, text.encode())


async def share_histograms(section: NetworkSection, texts: Mapping[str, str]) -> int:
    """Share the text of a histogram file per space with all nodes; return their version.

    They replace all histograms that were shared before. An invalid text is a FileFormatError, and
    nothing changes.
    """
    from nearcast.overlay.density_file import content_of

    contents = {space: content_of(text, where=space) for space, text in texts.items()}
    return await _put(section, HISTOGRAMS, json.dumps(contents).encode())


async def _put(section: NetworkSection, name: str, data: bytes) -> int:
    async with connected(section) as client:
        kept = await open_bucket(client, section, expires=False)
        return (await SharedSettings(client, kept, section).put(name, data, at_ms=now_ms())).version
