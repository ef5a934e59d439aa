"""The demonstration's brokers: four nodes on NATS, or one where there is none."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from nearcast.config import NetworkSection
from nearcast.demo.city import EAST, NORTH, SOUTH, WEST
from nearcast.model.errors import EnvironmentProblem
from nearcast.retained import Policies, write_policies
from nearcast.server.processes import Fleet, free_port

if TYPE_CHECKING:
    from nearcast.locality import Plan
    from nearcast.server.nats_members import Member

_PLAN_S = 60.0
NAMES = ("north", "east", "south", "west")
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


class Brokers:
    """Broker processes that end with the body, and what can be asked of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "nearcast.toml"
        self.missing = ""
        self.ports: list[int] = []
        self._fleet = Fleet(directory)
        self._address: str | None = None

    def __enter__(self) -> Self:
        self.config.write_text(CONFIG, encoding="utf-8")
        try:
            self._address = self._fleet.start_nats(free_port())
        except EnvironmentProblem as problem:
            self.missing = str(problem)
        for name in self.names:
            self.write_policies(name, None)  # nothing to decide by: MQTT's way
            port = free_port()
            self.ports.append(port)
            self._fleet.start_node(name, port, self._address, self.config)
        self._fleet.wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fleet.__exit__(kind, problem, trace)

    @property
    def names(self) -> Sequence[str]:
        """The nodes: one alone without NATS."""
        return NAMES if self._address is not None else NAMES[:1]

    @property
    def logs(self) -> list[Path]:
        """Where the nodes write what happens."""
        return [self.directory / name / "eventlog" for name in self.names]

    def write_policies(self, name: str, path: Path | None) -> None:
        """Let a node decide by these policies about retained messages; None: by none."""
        target = self.directory / name / "policies.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        if path is None:
            write_policies(Policies(), target)
        else:
            shutil.copyfile(path, target)

    def load(self, policies: Path) -> None:
        """Let all running nodes take these policies."""
        for child in self._fleet.nodes:
            self.write_policies(child.name, policies)
            os.kill(child.pid, signal.SIGHUP)

    async def share(self, plan: Plan) -> None:
        """Let the running network follow a plan, and wait until all nodes do."""
        from nearcast.server.nats_admin import share_plan

        if self._address is None:
            return
        await share_plan(NetworkSection(join=[self._address]), plan)
        until_s = time.monotonic() + _PLAN_S
        while min(one.plan for one in await self._members()) < plan.version:
            if time.monotonic() > until_s:
                raise EnvironmentProblem(
                    f"the nodes do not use the plan after {_PLAN_S:g} s",
                    todo=f"See the logs in {self.directory}.",
                )
            await asyncio.sleep(0.5)

    async def figures(self) -> dict[str, int]:
        """Return what the nodes have told each other so far; they say so once a second."""
        await asyncio.sleep(1.5 if self._address is not None else 0)
        members = await self._members()
        return {
            "handovers": sum(one.handovers for one in members),
            "messages": sum(one.messages_sent for one in members),
            "bytes": sum(one.bytes_sent for one in members),
        }

    async def _members(self) -> list[Member]:
        from nearcast.server.nats_admin import look

        if self._address is None:
            return []
        return await look(NetworkSection(join=[self._address]))
