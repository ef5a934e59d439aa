"""What happens in the demonstration: a city lives, its log is learned from, it lives on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearcast.demo.city import City
from nearcast.demo.inhabitants import Inhabitants
from nearcast.demo.nodes import Brokers
from nearcast.model.errors import EnvironmentProblem

LEAVES = 40
_PLAN_S = 20.0

Say = Callable[[str], None]


@dataclass
class Chapter:
    """What a stretch of the city's life came to."""

    seconds: float = 0.0
    events: int = 0
    deliveries: int = 0
    copies: int = 0
    handovers: int = 0
    messages: int = 0
    bytes: int = 0


@dataclass
class Story:
    """The whole of it."""

    nodes: int = 0
    people: int = 0
    missing: str = ""
    before: Chapter = field(default_factory=Chapter)
    after: Chapter = field(default_factory=Chapter)
    steps: list[dict[str, Any]] = field(default_factory=list)
    leaves: int = 0
    audit: dict[str, Any] = field(default_factory=dict)
    page: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines."""
        return asdict(self)


async def tell(directory: Path, people: int, seconds: float, say: Say) -> Story:
    """Live through it; everything is written below `directory`, nothing runs on afterwards."""
    story = Story(people=people)
    with Brokers(directory) as brokers:
        story.nodes, story.missing = len(brokers.names), brokers.missing
        if brokers.missing:
            say(f"One node only, and so no plan to follow: {brokers.missing}")
        say(f"{story.nodes} node(s) serve; {people} people connect, half of them in cars ...")
        inhabitants = Inhabitants(City(people), brokers.ports)
        await inhabitants.come()
        say(f"The city lives for {seconds:g} s, and the nodes write down what happens ...")
        story.before = await _live(inhabitants, brokers, seconds)
        say("Spark reads the log (nearcast pipeline run) while the city waits at its stops ...")
        nightly = directory / "nightly"
        run = _pipeline(brokers, "run", nightly, "--brokers", str(story.nodes))
        story.steps = (await inhabitants.wait_for(run))["steps"]
        story.leaves = await brokers.share(nightly / "plan.json")
        brokers.load(nightly / "policies.json")
        await _wait_for_plan(brokers)
        say(f"A plan of {story.leaves} leaves and new policies are in force; the city lives on ...")
        story.after = await _live(inhabitants, brokers, seconds)
        await inhabitants.go()
    say("Was anything lost, doubled or late? (nearcast pipeline audit) ...")
    story.audit = await _pipeline(brokers, "audit", directory / "audit")
    return story


async def _live(inhabitants: Inhabitants, brokers: Brokers, seconds: float) -> Chapter:
    tally, before = inhabitants.tally, await brokers.figures()
    deliveries, copies = tally.deliveries, tally.copies
    begun_s = time.perf_counter()
    events = await inhabitants.live(seconds)
    await asyncio.sleep(1.5)  # nodes tell their figures once a second
    after = await brokers.figures()
    return Chapter(
        seconds=round(time.perf_counter() - begun_s, 1),
        events=events,
        deliveries=tally.deliveries - deliveries,
        copies=tally.copies - copies,
        **{name: after[name] - before[name] for name in before},
    )


async def _wait_for_plan(brokers: Brokers) -> None:
    """Wait until all nodes use the plan that was shared."""
    until_s = time.monotonic() + _PLAN_S
    while len(brokers.names) > 1 and not await brokers.plan_in_use():
        if time.monotonic() > until_s:
            raise EnvironmentProblem(
                f"the nodes do not use the plan after {_PLAN_S:g} s",
                todo=f"See the logs in {brokers.directory}.",
            )
        await asyncio.sleep(0.5)


async def _pipeline(brokers: Brokers, job: str, output: Path, *options: str) -> dict[str, Any]:
    """Run a job as a user would, in a process of its own."""
    inputs = [word for log in brokers.logs for word in ("--input", str(log))]
    leaves = ["--leaves", str(LEAVES)] if job == "run" else []
    command = [sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline", job]
    command += [*inputs, "--output", str(output), "--config", str(brokers.config), "--json"]
    done = await asyncio.to_thread(
        subprocess.run, [*command, *options, *leaves], capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentProblem(
            f"pipeline {job} did not end well: {words[-1] if words else 'no word'}"
        ) from None
    return found
