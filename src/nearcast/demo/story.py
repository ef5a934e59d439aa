"""What happens in the demonstration: what the product does, a city, learning, what that changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.demo import telling
from nearcast.demo.city import BOUNDS, NEAR_M, DemoCity, News, Place, quarter
from nearcast.demo.history import HOURS, tracks_before, write_positions
from nearcast.demo.history import STEP_S as HISTORY_STEP_S
from nearcast.demo.inhabitants import TIMES_FASTER, Inhabitants, NodeOf
from nearcast.demo.needs import Needs
from nearcast.demo.nodes import NAMES, Brokers
from nearcast.demo.opening import (
    TOP,
    WITHIN_M,
    OrderOfArrival,
    Reached,
    try_causal,
    try_near,
    try_nearest,
)
from nearcast.demo.slow_line import SlowLine
from nearcast.demo.spark_process import SparkProcess
from nearcast.demo.telling import StoryTeller, open_browser

if TYPE_CHECKING:
    from nearcast.locality import Plan

LEAVES = 12  # so many people may be in one that three of them are enough for a node
_TELL_S = 10.0
_LOOK_S = 2.0  # for eyes: before and after what is over in milliseconds
_BROWSER_S = 3.0  # until a browser shows the page
Outcome = TypeVar("Outcome")
Say = Callable[[str], None]
Show = Callable[[DemoCity, Sequence[News]], None]


@dataclass
class Chapter:
    """The figures of one life of the city; those about nodes are None where there is one node."""

    seconds: float = 0.0
    events: int = 0
    news: int = 0  # of the events, those with a place
    near: int = 0  # deliveries of these
    copies: int = 0  # retained messages sent to new subscribers
    wait_s: float = 0.0  # until a new subscriber had its first message, the median
    handovers: int | None = None
    messages: int | None = None
    bytes: int | None = None


@dataclass
class DemoStory:
    """All that happened; `missing` has the reason for each part that was left out."""

    nodes: int = 0
    people: int = 0
    missing: list[str] = field(default_factory=list)
    near: Reached | None = None
    nearest: Reached | None = None
    order: OrderOfArrival | None = None
    no_plan: Chapter = field(default_factory=Chapter)
    learned: Chapter | None = None
    quadrants: Chapter | None = None
    leaves: int = 0
    leaves_quadrants: int = 0  # as compared: about as many
    leaves_needed: int = 0  # of quadrants only, with as many people in each as in the plan
    names: list[str] = field(default_factory=list)  # of the nodes, by their number in the plan
    people_at: dict[str, Place] = field(default_factory=dict)  # at the end
    steps: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] | None = None
    page: str = ""

    @property
    def flooded(self) -> int:
        """Messages between nodes if each event went to every node, and each node answered."""
        return 2 * (self.nodes - 1) * self.no_plan.events

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON has them."""
        return {**asdict(self), "flooded": self.flooded}


async def tell(
    directory: Path,
    people: int,
    seconds: float,
    seed: int,
    needs: Needs,
    say: Say,
    show: Show,
    live_on: Callable[[DemoStory], None] | None = None,
) -> DemoStory:
    """Run the demonstration; all files are written below `directory`, no process is left over.

    `live_on`, where given, is called at the end of the story; then the city lives on until the task
    is cancelled.
    """
    async with SparkProcess(directory / "pipeline.log") as spark:
        missing = "" if needs.is_arriving() else needs.missing()
        if missing:
            say(f"Learning will be left out: {missing}")
        elif not needs.is_arriving():
            await spark.start()
        demonstration = _Telling(directory, people, seconds, seed, say, show, spark, live_on)
        return await demonstration.tell(needs)


@dataclass
class _Telling:
    """The demonstration under way."""

    directory: Path
    people: int
    seconds: float
    seed: int
    say: Say
    show: Show
    spark: SparkProcess
    live_on: Callable[[DemoStory], None] | None = None
    teller: StoryTeller = field(default_factory=StoryTeller)

    async def tell(self, needs: Needs) -> DemoStory:
        self.say("Starting four nodes ...")
        async with Brokers(self.directory) as brokers:
            story = DemoStory(nodes=len(brokers.names), people=self.people)
            if brokers.missing:
                story.missing.append(f"several nodes: {brokers.missing}")
                self.say(f"One node only: {brokers.missing}")
            await self._show_page(brokers)
            await self._open(story, brokers)
            inhabitants = Inhabitants(self.people, brokers.ports, self.seed)
            await self._live_first(story, inhabitants, brokers)
            if await self._can_learn(needs, inhabitants):
                await self._learn(story, inhabitants, brokers)
                audit = await self._begin_audit(brokers)
            else:
                story.missing.append(f"learning: {needs.missing()}")
                audit = None
            if self.live_on is not None:
                await self._live_on(story, inhabitants, audit)
            await asyncio.gather(inhabitants.go(), self.teller.go())
        if audit is not None:
            story.audit = await audit
        return story

    async def _show_page(self, brokers: Brokers) -> None:
        if not brokers.address:
            return
        await self.teller.come(brokers.ports[0])
        self.say(f"   Watch it on the map: {brokers.address}")
        if self.live_on is not None and open_browser(brokers.address):
            await asyncio.sleep(_BROWSER_S)

    async def _live_on(
        self,
        story: DemoStory,
        inhabitants: Inhabitants,
        audit: asyncio.Task[dict[str, Any]] | None,
    ) -> None:
        """End the story, and let the city live on until the demonstration is ended from outside."""
        if audit is not None:
            story.audit = await inhabitants.wait_for(audit)
        assert self.live_on is not None
        self.live_on(story)
        while True:
            await inhabitants.live(self.seconds, self.show)

    async def _open(self, story: DemoStory, brokers: Brokers) -> None:
        """Show what the product does."""
        say = self.say
        say("1. A message reaches the clients that are near")
        look_s = _LOOK_S if self.live_on is not None and brokers.address else 0.0
        self.teller.step(1, "A message reaches the clients that are near", *telling.NEAR)
        near = story.near = await try_near(brokers.ports, look_s)
        say(f"   {_nodes(story.nodes)}.")
        say(f"   Ana and Ben subscribe to $near/{WITHIN_M}m/city/#. A bakery publishes city/bread.")
        for name, away_m in near.away_m.items():
            verb = "gets it" if name in near.reached else "does not"
            say(f"   {name.capitalize()} is {away_m:3,} m away and {verb}.")
        self.teller.step(2, f"An order reaches the {TOP} nearest couriers", *telling.NEAREST)
        nearest = story.nearest = await try_nearest(brokers.ports, look_s)
        say(f"   An order with $top={TOP} and $rank=nearest reaches the nearest of 11 couriers:")
        ranked = sorted(nearest.reached, key=nearest.away_m.__getitem__)
        away = ", ".join(f"{name} ({nearest.away_m[name]} m)" for name in ranked)
        say(f"   {away}")
        for one in (near, nearest):
            if not one.is_right:
                say(f"   This is wrong: it should have reached {', '.join(one.expected)}.")
        if brokers.line is not None:
            await self._order(story, brokers.ports, brokers.line, look_s)

    async def _order(
        self, story: DemoStory, ports: Sequence[int], line: SlowLine, look_s: float
    ) -> None:
        """Show that an answer waits for its question."""
        title = "An answer waits for its question"
        self.teller.step(3, title, *telling.CAUSAL)
        found = story.order = await try_causal(ports, line, look_s)
        self.teller.step(3, title, *telling.CAUSAL, table=telling.order_table(found))
        self.say("   Dan asks in the north, Eve in the east answers. The line from north to west")
        self.say("   is slow. In the west arrive, on a plain topic and in causal order:")
        for name, arrived in (("plain", found.plain), ("causal", found.causal)):
            words = ", then ".join(f"the {word} after {after_s:.2f} s" for word, after_s in arrived)
            self.say(f"   {name:6}  {words}")
        if not found.is_right:
            self.say("   This is wrong: the answer should have come after its question.")
        await asyncio.sleep(look_s)

    async def _live_first(
        self, story: DemoStory, inhabitants: Inhabitants, brokers: Brokers
    ) -> None:
        """Run the city without a plan; Spark, if it starts, is up before anything is timed."""
        say, spark = self.say, self.spark
        say(f"\n2. A city: {self.people} MQTT clients, people on foot, cars and buses")
        self.teller.step(4, f"A city: {self.people} clients on the move", *telling.CITY)
        if spark.is_started and not spark.is_ready:
            await inhabitants.begin()
            say("   Spark is starting; the city waits, so that nothing disturbs what is timed ...")
        if spark.is_started:
            await spark.ready()
        say(f"   Their clock runs {TIMES_FASTER} times as fast: they move for {self.seconds:g} s,")
        say(f"   and get what happens within {NEAR_M} m of them.")
        chapter = story.no_plan = await self._live(inhabitants, brokers)
        say(
            f"   {chapter.news:,} events were delivered {chapter.near:,} times. With an ordinary "
            f"topic each would\n   go to everybody: {chapter.news * story.people:,} messages."
        )

    async def _live(
        self, inhabitants: Inhabitants, brokers: Brokers, node_of: NodeOf = quarter
    ) -> Chapter:
        return await live_chapter(inhabitants, brokers, self.seconds, node_of, self.show)

    async def _can_learn(self, needs: Needs, inhabitants: Inhabitants) -> bool:
        """Return whether PySpark and Java are there; the city lives on while they are installed."""
        if self.spark.is_started:
            return True
        if needs.is_arriving():
            self.say(
                "\n   PySpark and Java are still being installed; the city lives on meanwhile ..."
            )
        while needs.is_arriving():
            await inhabitants.live(5, self.show)
            self.say(f"   {needs.progress()}")
        missing = needs.missing()
        if missing:
            self.say(f"\n3. Learning is left out: {missing}")
        else:
            await self.spark.start()
        return not missing

    async def _learn(self, story: DemoStory, inhabitants: Inhabitants, brokers: Brokers) -> None:
        """Learn from record and logs while nobody moves; then live under what was learned."""
        self.say(
            f"\n3. Learning: Spark reads where all were in the last {HOURS} hours (a record of"
        )
        self.say("   the same simulation; nearcast pipeline run), and the nodes' logs (train) ...")
        self.teller.step(5, "Learning from what happened", *telling.LEARNING)
        begun_s = time.monotonic()
        tracks = await asyncio.to_thread(self._remember)
        quadrants = asyncio.to_thread(_quadrants, tracks, story.nodes)
        plan, _ = await inhabitants.wait_for(asyncio.gather(quadrants, self._run(story, brokers)))
        self.say(
            f"   Learned in {time.monotonic() - begun_s:.0f} s: a plan of {story.leaves} areas "
            f"(leaves), where quadrants would take {story.leaves_needed},\n   and when it pays to "
            "send retained messages"
        )
        await self._live_again(story, inhabitants, brokers)
        if story.nodes > 1:
            names = await self._live_in_quadrants(story, inhabitants, brokers, plan)
            self._compare(story, plan, names)

    @property
    def _record(self) -> Path:
        return self.directory / "record.parquet"

    def _remember(self) -> dict[str, list[Place]]:
        """Write where everybody was in the hours before; return it as tracks."""
        tracks = tracks_before(self.people, self.seed)
        write_positions(tracks, self._record)
        return tracks

    def _compare(self, story: DemoStory, quadrants: Plan, names: Sequence[str]) -> None:
        """Show both plans side by side, and what each of them cost."""
        from nearcast.demo.page import tables
        from nearcast.locality import load_plan

        learned = load_plan(self.directory / "nightly" / "plan.json")
        plans = [("Quadrants only", quadrants, names), ("Learned", learned, story.names)]
        table = next(iter(tables(story)), None)
        title = "The same seconds: quadrants and the learned plan"
        self.teller.step(7, title, *telling.COMPARED, table=table, plans=plans)

    async def _run(self, story: DemoStory, brokers: Brokers) -> None:
        """Learn the plan from the record, and policies from a copy of the logs."""
        options = ["--brokers", str(story.nodes), "--leaves", str(LEAVES), "--no-audit"]
        options += [f"--bounds={','.join(map(str, BOUNDS))}"]
        options += ["--hold-out", "0"]  # some hours have no other days to judge by
        config = brokers.learning_config
        found = await self._pipeline("run", [self._record], config, *options)
        logs = await brokers.copy_logs("learned-from")
        trained = await self._pipeline("train", logs, config)
        story.steps = [step for step in found["steps"] if step["summary"] is not None]
        story.steps.append({"name": "train", "summary": trained})
        plan = next(step["summary"] for step in story.steps if step["name"] == "plan")
        story.leaves = plan["leaves"]
        story.leaves_needed = plan["leaves_q_only"]

    async def _live_in_quadrants(
        self, story: DemoStory, inhabitants: Inhabitants, brokers: Brokers, plan: Plan
    ) -> Sequence[str]:
        """Live under a plan to compare with; return the names of the nodes that serve it."""
        story.leaves_quadrants = len(plan.leaves)
        names = await brokers.share(plan)
        self.say("   And once more under a plan of quadrants only, to compare")
        story.quadrants = await self._live(inhabitants, brokers, node_numbers(plan, names))
        return names

    async def _live_again(
        self, story: DemoStory, inhabitants: Inhabitants, brokers: Brokers
    ) -> None:
        from nearcast.locality import load_plan

        learned = self.directory / "nightly"
        brokers.load(learned / "policies.json")
        plan = load_plan(learned / "plan.json")
        story.names = list(await brokers.share(plan))
        self.say(f"\n4. The same {self.seconds:g} s under the learned plan and policies")
        self.teller.step(6, "The same again, under the learned plan", *telling.LEARNED)
        story.learned = await self._live(inhabitants, brokers, node_numbers(plan, story.names))
        story.people_at = {one.name: one.place for one in inhabitants.city.movers}

    async def _begin_audit(self, brokers: Brokers) -> asyncio.Task[dict[str, Any]]:
        """Begin the audit of a copy of the logs: it goes on while the nodes end."""
        self.say("\n5. Was any message lost, doubled or late? (nearcast pipeline audit) ...")
        logs = await brokers.copy_logs("audited")
        return asyncio.create_task(self._pipeline("audit", logs, brokers.config))

    async def _pipeline(
        self, job: str, logs: Sequence[Path], config: Path, *options: str
    ) -> dict[str, Any]:
        """Run a command of `nearcast pipeline`; every ten seconds, say how far it is."""
        output = self.directory / _OUTPUTS[job]
        words = ["pipeline", job, "--output", str(output), "--config", str(config), "--json"]
        words += [word for log in logs for word in ("--input", str(log))]
        work = self.spark.run(*words, *options)
        return await _told_meanwhile(work, output, self.say)


_OUTPUTS = {"run": "nightly", "train": "nightly", "audit": "audit"}


def _quadrants(tracks: Mapping[str, Sequence[Place]], nodes: int) -> Plan:
    """Return the plan to compare with; its first call loads and compiles for a second."""
    from nearcast.demo.quadrants import quadrant_plan
    from nearcast.locality import Rect

    return quadrant_plan(Rect(*BOUNDS), tracks.values(), LEAVES, nodes, HISTORY_STEP_S)


def node_numbers(plan: Plan, names: Sequence[str]) -> NodeOf:
    """Return a function of a place: the number of the node that serves it."""
    return lambda place: NAMES.index(names[plan.broker_of(plan.leaf_at(*place).number)])


def _nodes(count: int) -> str:
    return "One node is up" if count == 1 else f"{count} nodes are up and act as one broker"


async def live_chapter(
    inhabitants: Inhabitants,
    brokers: Brokers,
    seconds: float,
    node_of: NodeOf = quarter,
    show: Show = lambda *_: None,
) -> Chapter:
    """Run the city from its beginning, everybody at the node of its place; return the figures."""
    await inhabitants.begin(node_of)
    before = await brokers.figures()
    news: list[int] = []

    def counted(city: DemoCity, happened: Sequence[News]) -> None:
        news.append(len(happened))
        show(city, happened)

    events = await inhabitants.live(seconds, counted)
    after, tally = await brokers.figures(), inhabitants.tally
    told = {name: after[name] - before[name] for name in before} if len(brokers.names) > 1 else {}
    return Chapter(
        seconds=seconds,
        events=events,
        news=sum(news),
        near=tally.got["city"],
        copies=tally.copies,
        wait_s=round(median(tally.waits_s), 2) if tally.waits_s else 0.0,
        **told,
    )


async def _told_meanwhile(work: Coroutine[Any, Any, Outcome], output: Path, say: Say) -> Outcome:
    """Wait for a job; print every ten seconds how long it has run and which tables it wrote."""
    task, begun_s = asyncio.ensure_future(work), time.monotonic()
    try:
        while not (await asyncio.wait({task}, timeout=_TELL_S))[0]:
            say(f"   {time.monotonic() - begun_s:.0f} s{_written(output)}")
        return task.result()
    finally:
        task.cancel()


def _written(output: Path) -> str:
    tables = sorted(one.name for one in output.glob("*") if one.is_dir())
    return f"; wrote {', '.join(tables)}" if tables else ""
