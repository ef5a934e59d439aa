"""How commands reach a running cluster, and share with it what the pipeline learned."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.terminal import errors_by_option, os_errors_translated

if TYPE_CHECKING:
    from nearcast.config import NetworkSection
    from nearcast.pipeline.run import RunFiles

Join = Annotated[str | None, typer.Option(help="The address of NATS.")]
Network = Annotated[str | None, typer.Option(help="The network's name.")]
Reassign = Annotated[
    bool,
    typer.Option(
        "--reassign", help="Give the leaves of a plan's absent nodes to those that are there."
    ),
]


def network_section(config: Path | None, join: str | None, network: str | None) -> NetworkSection:
    """Return how to reach a cluster: options, else the configuration, else NATS on this host."""
    from nearcast.config import load

    options = {"JOIN": ("--join", join), "NAME": ("--network", network)}
    given = {f"NEARCAST_NETWORK__{key}": one for key, one in options.items() if one[1] is not None}
    environ = {variable: str(value) for variable, (_, value) in given.items()}
    with errors_by_option({variable: option for variable, (option, _) in given.items()}):
        section = load(config, {**os.environ, **environ}).network
    if section.join:
        return section
    return section.model_copy(update={"join": ["nats://127.0.0.1:4222"]})


def share_plan_file(
    section: NetworkSection, path: Path, *, reassigns: bool = False, is_new: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Share a plan file, or a schedule of plans; return lines for people and fields for JSON.

    `is_new`: it was made just now. Then it gets the next number, whatever the cluster has, and the
    file is written with that number; with the nodes' names as well if it assigns brokers.
    """
    from nearcast.locality import load_plan, save_plan
    from nearcast.locality.schedule.plan_schedule import is_schedule
    from nearcast.server.cluster.nats_sharing import offer_plan

    with os_errors_translated():
        if is_schedule(path):
            return _share_schedule_file(section, path)
        plan = load_plan(path)
        offer = asyncio.run(offer_plan(section, plan, reassigns=reassigns, renumbers=is_new))
        named, notes = offer.plan, offer.notes()
        if is_new:
            known = plan if plan.brokers is None else named.plan.with_flows(plan.flows)
            save_plan(known.numbered(named.version), path)
    told = f"Plan {named.version} is shared with {', '.join(named.nodes)}."
    if offer.is_in_force:
        told = f"Plan {named.version} is what the cluster has already."
    return [told, *notes], {"plan": named.version, "nodes": list(named.nodes), "notes": notes}


def _share_schedule_file(section: NetworkSection, path: Path) -> tuple[list[str], dict[str, Any]]:
    from nearcast.locality.schedule.plan_schedule import load_schedule
    from nearcast.server.cluster.nats_sharing import now_ms, share_schedule

    plans = load_schedule(path)
    offer = asyncio.run(share_schedule(section, plans))
    due, following = plans.schedule.plan_at(now_ms()), plans.schedule.following(now_ms())
    named, notes = offer.plan, offer.notes()
    lines = [
        f"The schedule is shared with {', '.join(named.nodes)}: {due} is plan {named.version}.",
        f"{following.plan} follows at {plans.schedule.local_time(following.at_ms)}.",
    ]
    fields = {"plan": named.version, "nodes": list(named.nodes), "notes": notes}
    return [*lines, *notes], {**fields, "scheduled": due, "following": following.plan}


def share_policy_file(section: NetworkSection, path: Path) -> tuple[list[str], dict[str, Any]]:
    """Share a policy file; return lines for people and fields for JSON."""
    from nearcast.retained import policies_to_text, read_policies
    from nearcast.server.cluster.nats_sharing import share_policies

    with os_errors_translated():
        text = policies_to_text(read_policies(path))
    version = asyncio.run(share_policies(section, text))
    return [f"Policies {version} are shared."], {"policies": version}


def share_histogram_files(
    section: NetworkSection, paths: Mapping[str, Path]
) -> tuple[list[str], dict[str, Any]]:
    """Share a histogram file per space; return lines for people and fields for JSON."""
    from nearcast.server.cluster.nats_sharing import share_histograms

    with os_errors_translated():
        texts = {space: path.read_text(encoding="utf-8") for space, path in paths.items()}
    version = asyncio.run(share_histograms(section, texts))
    return [f"Histograms {version} are shared: {', '.join(texts)}."], {"histograms": version}


def share_run(
    section: NetworkSection, files: RunFiles, *, reassigns: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Share what a run of the pipeline has written; the plan last, since it may be refused."""
    told: list[tuple[list[str], dict[str, Any]]] = []
    if files.policies is not None:
        told.append(share_policy_file(section, files.policies))
    if files.histograms:
        told.append(share_histogram_files(section, files.histograms))
    if files.schedule is not None:
        told.append(share_plan_file(section, files.schedule))
    elif files.plan is not None:
        told.append(share_plan_file(section, files.plan, reassigns=reassigns, is_new=True))
    lines = [line for each, _ in told for line in each]
    return lines, {key: value for _, fields in told for key, value in fields.items()}
