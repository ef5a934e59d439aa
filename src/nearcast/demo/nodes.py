"""The demonstration's brokers: four nodes over NATS, or one node where there is no NATS."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nearcast.config import NetworkSection
from nearcast.demo.city import EAST, NORTH, SOUTH, WEST
from nearcast.demo.slow_line import SlowLine
from nearcast.model.errors import EnvironmentProblem
from nearcast.retained import Policies, write_policies
from nearcast.server.http.operators import set_operator
from nearcast.server.local_cluster import LocalCluster, free_port

if TYPE_CHECKING:
    from nearcast.locality import Plan
    from nearcast.server.cluster.nats_members import MemberRecord

_PLAN_S = 60.0
_LOGGED_S = 0.5  # after that, what has happened is in the logs
_ARRIVAL_S = 0.5  # from a broker's answer until the message is everywhere
_REFRESH_S = 1.0  # how often a node writes its figures into the list of nodes
NAMES = ("north", "east", "south", "west")
_PAGE = """
[http]
address = "127.0.0.1:{port}"
operators = "{operators}"
"""
CONFIG = f"""\
[log]
events = "full"

[[space]]
name = "city"
topics = "city/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = {{ low = {WEST - 0.01}, high = {EAST + 0.01} }}
lat = {{ low = {SOUTH - 0.01}, high = {NORTH + 0.01} }}
price = {{ low = 0, high = 100 }}

[[retained]]
topics = "stops/#"
mode = "learned"
hold = "5s"
omega = 0.3
"""
TALK = f"""
[[space]]
name = "talk"
topics = "talk/#"
order = "causal"
lifetime = "5s"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = {{ low = {WEST - 0.01}, high = {EAST + 0.01} }}
lat = {{ low = {SOUTH - 0.01}, high = {NORTH + 0.01} }}
"""
"""The space with causal order; there is nothing to learn from it."""


class Brokers:
    """The broker processes; they end with the body."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "nearcast.toml"
        self.learning_config = directory / "learning.toml"
        self.missing = ""
        self.address = ""  # of the page of the first node, with an operator's token
        self.ports: list[int] = []
        self._fleet = LocalCluster(directory)
        self._address: str | None = None
        self._page_address = ""
        self._plans = 0
        self.line: SlowLine | None = None  # on which what the first node sends to the last can wait

    async def __aenter__(self) -> Self:
        try:
            await self._start()
            await asyncio.to_thread(self._fleet.wait_until_ready)  # Ctrl-C is heard meanwhile
            if self._fleet.nodes[0].has_said("Listening on http"):  # not where it is switched off
                self.address = self._page_address
        except BaseException:
            self._fleet.__exit__(None, None, None)
            await self._end_line()
            raise
        return self

    async def _start(self) -> None:
        self.config.write_text(CONFIG + TALK, encoding="utf-8")
        self.learning_config.write_text(CONFIG, encoding="utf-8")
        operators = (self.directory / "operators.txt").resolve()
        token = set_operator(operators, "demo", "operator", None)
        nats_port = free_port()
        try:
            self._address = self._fleet.start_nats(nats_port)
        except EnvironmentProblem as problem:
            self.missing = str(problem)
        pages: list[int] = []
        for name in self.names:
            self.write_policies(name, None)  # nothing to decide by: MQTT's way
            port = free_port()
            self.ports.append(port)
            pages.append(free_port())
            config = self.directory / f"{name}.toml"
            page = _PAGE.format(port=pages[-1], operators=operators)
            config.write_text(CONFIG + TALK + page, encoding="utf-8")
            address = self._address
            if name == NAMES[-1]:
                self.line = SlowLine(nats_port, NAMES[0])
                address = f"nats://127.0.0.1:{await self.line.start()}"
            self._fleet.start_node(name, port, address, config)
        self._page_address = f"http://127.0.0.1:{pages[0]}/#demo&token={token}"

    async def __aexit__(self, *problem: object) -> None:
        """End the nodes; that takes seconds, in which other tasks go on."""
        await asyncio.to_thread(self._fleet.__exit__, *problem)
        await self._end_line()

    async def _end_line(self) -> None:
        if self.line is not None:
            await self.line.stop()

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes: one node without NATS."""
        return NAMES if self._address is not None else NAMES[:1]

    @property
    def logs(self) -> list[Path]:
        """The directories that the nodes write their event logs to."""
        return [self.directory / name / "eventlog" for name in self.names]

    async def copy_logs(self, target: str) -> list[Path]:
        """Copy the event logs as they are now, and return the copies: the nodes write on."""
        await asyncio.sleep(_LOGGED_S)
        copies = [self.directory / target / name for name in self.names]
        for log, copy in zip(self.logs, copies, strict=True):
            shutil.copytree(log, copy)
        return copies

    def write_policies(self, name: str, path: Path | None) -> None:
        """Write the policies for retained messages that a node decides by; None: no policies."""
        target = self.directory / name / "policies.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        if path is None:
            write_policies(Policies(), target)
        else:
            shutil.copyfile(path, target)

    def load(self, policies: Path) -> None:
        """Make all running nodes load these policies."""
        for child in self._fleet.nodes:
            self.write_policies(child.name, policies)
            os.kill(child.pid, signal.SIGHUP)

    async def share(self, plan: Plan) -> Sequence[str]:
        """Share a plan with the running nodes and wait until all do.

        Plans are numbered in the order in which they are shared. Returns the name of the node that
        serves the leaves of each broker number.
        """
        from nearcast.server.cluster.nats_admin import share_plan

        if self._address is None:
            return self.names
        self._plans += 1
        assert plan.brokers is not None
        numbered = plan.with_brokers(plan.brokers, self._plans)
        named = await share_plan(NetworkSection(join=[self._address]), numbered)
        await self._wait_for_plan(self._plans)
        return named.nodes

    async def _wait_for_plan(self, version: int) -> None:
        until_s = time.monotonic() + _PLAN_S
        while min(one.plan for one in await self._members()) < version:
            if time.monotonic() > until_s:
                raise EnvironmentProblem(
                    f"the nodes do not use the plan after {_PLAN_S:g} s",
                    todo=f"See the logs in {self.directory}.",
                )
            await asyncio.sleep(0.2)

    async def figures(self) -> dict[str, int]:
        """Return how much the nodes have sent to each other, up to half a second after the call.

        By then, what was answered before the call has arrived. Nodes tell the figures every second.
        """
        await asyncio.sleep(_ARRIVAL_S + (_REFRESH_S if self._address is not None else 0))
        members = await self._members()
        return {
            "handovers": sum(one.handovers for one in members),
            "messages": sum(one.messages_sent for one in members),
            "bytes": sum(one.bytes_sent for one in members),
        }

    async def _members(self) -> list[MemberRecord]:
        from nearcast.server.cluster.nats_admin import look

        if self._address is None:
            return []
        return await look(NetworkSection(join=[self._address]))
