"""What happens in the demonstration: what it does, a city, what it learns, what that changed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from nearcast.demo.city import City, News
from nearcast.demo.inhabitants import Inhabitants
from nearcast.demo.needs import Needs
from nearcast.demo.nodes import Brokers
from nearcast.demo.opening import TOP, WITHIN_M, Reached, try_near, try_nearest
from nearcast.model.errors import EnvironmentProblem

LEAVES = 40
# A short job runs much code once: Java's second compiler costs it more than it saves.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_TELL_S = 10.0
Outcome = TypeVar("Outcome")
Say = Callable[[str], None]
Show = Callable[[City, Sequence[News]], None]


@dataclass
class Chapter:
    """What a stretch of the city's life came to; the figures of nodes are None with one node."""

    seconds: float = 0.0
    events: int = 0
    news: int = 0  # of the events, those with a place
    near: int = 0  # deliveries of these
    copies: int = 0  # retained messages sent to newcomers
    wait_s: float = 0.0  # until a newcomer had its first message, the median
    handovers: int | None = None
    messages: int | None = None
    bytes: int | None = None


@dataclass
class Story:
    """The whole of it; what was left out has its reason in `missing`."""

    nodes: int = 0
    people: int = 0
    missing: list[str] = field(default_factory=list)
    near: Reached | None = None
    nearest: Reached | None = None
    no_plan: Chapter = field(default_factory=Chapter)
    learned: Chapter | None = None
    quadrants: Chapter | None = None
    leaves: int = 0
    leaves_quadrants: int = 0  # as compared: about as many
    leaves_needed: int = 0  # of quadrants alone, with as many people in each as in the plan
    regions: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] | None = None
    page: str = ""

    @property
    def flooded(self) -> int:
        """Messages between nodes if each event went to every node, and was answered for."""
        return 2 * (self.nodes - 1) * self.no_plan.events

    def to_dict(self) -> dict[str, Any]:
        """Return it for machines."""
        return {**asdict(self), "flooded": self.flooded}


async def tell(
    directory: Path, people: int, seconds: float, needs: Needs, say: Say, show: Show
) -> Story:
    """Live through it; everything is written below `directory`, nothing runs on afterwards."""
    story = Story(people=people)
    with Brokers(directory) as brokers:
        story.nodes = len(brokers.names)
        if brokers.missing:
            story.missing.append(f"several nodes: {brokers.missing}")
            say(f"One node only: {brokers.missing}")
        await _open(story, brokers, say)
        inhabitants = Inhabitants(people, brokers.ports)
        say(f"\n2. A city on {_nodes(story.nodes)}: {people} people, half of them in cars")
        await inhabitants.come()
        say(f"   They move for {seconds:g} s; what happens is for whoever is within 150 m.")
        story.no_plan = await _live(inhabitants, brokers, seconds, show)
        _tell_of_near(story, say)
        if await _can_learn(needs, inhabitants, say, show):
            await _learn(story, inhabitants, brokers, seconds, say, show)
        else:
            story.missing.append(f"learning: {needs.missing()}")
        await inhabitants.go()
    if story.learned is not None:
        say("\nWas anything lost, doubled or late? (nearcast pipeline audit) ...")
        story.audit = await _pipeline(brokers, "audit", directory / "audit", say=say)
    return story


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"


async def _open(story: Story, brokers: Brokers, say: Say) -> None:
    """Show what the product does."""
    say(f"1. A message reaches who is near ({_nodes(story.nodes)}; any MQTT client will do)")
    near = story.near = await try_near(brokers.ports)
    say(f"   Ana and Ben subscribe to $near/{WITHIN_M}m/city/#. A bakery publishes city/bread.")
    for name, away_m in near.away_m.items():
        verb = "gets it" if name in near.reached else "does not get it"
        say(f"   {name.capitalize():4}{away_m:5,} m away: {verb}")
    nearest = story.nearest = await try_nearest(brokers.ports)
    say(f"   An order with $top={TOP}, $rank=nearest, for {len(nearest.away_m)} couriers, reaches")
    ranked = sorted(nearest.reached, key=nearest.away_m.__getitem__)
    away = ", ".join(f"{name} ({nearest.away_m[name]} m)" for name in ranked)
    say(f"   {away}")
    for one in (near, nearest):
        if not one.is_right:
            say(f"   This is wrong: it should have reached {', '.join(one.expected)}.")


def _tell_of_near(story: Story, say: Say) -> None:
    chapter = story.no_plan
    everyone = chapter.news * story.people
    say(
        f"   {chapter.news:,} things happened; {chapter.near:,} messages told those who were near."
        f"\n   A plain topic would have brought {everyone:,}."
    )


async def _can_learn(needs: Needs, inhabitants: Inhabitants, say: Say, show: Show) -> bool:
    """Wait for what is being installed, while the city lives on; tell whether all is there."""
    if needs.is_arriving():
        say("\n   PySpark and Java are still being installed; the city lives on meanwhile ...")
    while needs.is_arriving():
        await inhabitants.live(5, show)
        say(f"   {needs.progress()}")
    missing = needs.missing()
    if missing:
        say(f"\n3. Learning is left out: {missing}")
    return not missing


async def _learn(
    story: Story,
    inhabitants: Inhabitants,
    brokers: Brokers,
    seconds: float,
    say: Say,
    show: Show,
) -> None:
    """Let Spark read the log, and the same city live again under what came of it."""
    from nearcast.demo.quadrants import quadrants_like
    from nearcast.locality import load_plan

    say("\n3. It learns: Spark reads the nodes' logs (nearcast pipeline run) ...")
    nightly = brokers.directory / "nightly"
    run = _pipeline(brokers, "run", nightly, "--brokers", str(story.nodes), "--no-audit", say=say)
    begun_s = time.monotonic()
    story.steps = (await inhabitants.wait_for(run))["steps"]
    found = next(step["summary"] for step in story.steps if step["name"] == "plan")
    story.leaves, story.regions = found["leaves"], found["regions"]
    story.leaves_needed = found["leaves_q_only"]
    say(
        f"   A plan of {story.leaves} leaves over {story.regions} slow regions, and policies for "
        f"retained messages, after {time.monotonic() - begun_s:.0f} s"
    )
    learned = load_plan(nightly / "plan.json")
    plain = quadrants_like(learned, inhabitants.tracks.values(), learned.version + 1)
    story.leaves_quadrants = len(plain.leaves)
    brokers.load(nightly / "policies.json")
    await brokers.share(learned)
    say(f"\n4. The same {seconds:g} s again, under the learned plan and policies")
    story.learned = await _live(inhabitants, brokers, seconds, show)
    if story.nodes > 1:
        await brokers.share(plain)
        say("   And once more under a plan of quadrants alone, to compare")
        story.quadrants = await _live(inhabitants, brokers, seconds, show)


async def _live(inhabitants: Inhabitants, brokers: Brokers, seconds: float, show: Show) -> Chapter:
    """Let the same city live from its beginning; return what it came to."""
    await inhabitants.begin()
    before = await brokers.figures()
    begun_s = time.perf_counter()
    news: list[int] = []

    def counted(city: City, happened: Sequence[News]) -> None:
        news.append(len(happened))
        show(city, happened)

    events = await inhabitants.live(seconds, counted)
    took_s = round(time.perf_counter() - begun_s, 1)
    after, tally = await brokers.figures(), inhabitants.tally
    told = {name: after[name] - before[name] for name in before} if len(brokers.names) > 1 else {}
    return Chapter(
        seconds=took_s,
        events=events,
        news=sum(news),
        near=tally.got["city"],
        copies=tally.copies,
        wait_s=round(median(tally.waits_s), 2) if tally.waits_s else 0.0,
        **told,
    )


async def _pipeline(
    brokers: Brokers, job: str, output: Path, *options: str, say: Say
) -> dict[str, Any]:
    """Run a job as a user would, in a process of its own; say how far it is now and then."""
    inputs = [word for log in brokers.logs for word in ("--input", str(log))]
    leaves = ["--leaves", str(LEAVES)] if job == "run" else []
    command = [sys.executable, "-c", "from nearcast.cli import main; main()", "pipeline", job]
    command += [*inputs, "--output", str(output), "--config", str(brokers.config), "--json"]
    process = await asyncio.create_subprocess_exec(
        *command, *options, *leaves,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"SPARK_SUBMIT_OPTS": _JAVA, **os.environ},
    )  # fmt: skip
    try:
        stdout, stderr = await _told_meanwhile(process.communicate(), output, say)
    except asyncio.CancelledError:  # Ctrl-C
        process.terminate()
        raise
    try:
        found: dict[str, Any] = json.loads(stdout)
    except ValueError:
        words = (stderr or stdout).decode(errors="replace").strip().splitlines()
        raise EnvironmentProblem(
            f"pipeline {job} did not end well: {words[-1] if words else 'no word'}"
        ) from None
    return found


async def _told_meanwhile(work: Coroutine[Any, Any, Outcome], output: Path, say: Say) -> Outcome:
    """Wait for a job; say every ten seconds how long it has run and what it has written."""
    task, begun_s = asyncio.ensure_future(work), time.monotonic()
    while not (await asyncio.wait({task}, timeout=_TELL_S))[0]:
        say(f"   {time.monotonic() - begun_s:.0f} s{_written(output)}")
    return task.result()


def _written(output: Path) -> str:
    tables = sorted(one.name for one in output.glob("*") if one.is_dir())
    return f"; written so far: {', '.join(tables)}" if tables else ""
