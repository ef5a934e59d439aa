"""A network of five nodes for `network_faults.py`, what is done to it, and how it is mended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from benchmarks.fault_people import CONFIG, SPOTS

from nearcast.config import NetworkSection
from nearcast.locality import CellCounts, Plan
from nearcast.model.errors import NearcastError
from nearcast.server.cluster.nats_admin import ask_to_leave, look
from nearcast.server.cluster.nats_sharing import offer_plan
from nearcast.server.local_cluster import ChildProcess, LocalCluster, free_port

NAMES = ("a", "b", "c", "d")
DOORS = ("a", "c")
"""These let others connect to them: of the links, most go directly and some over NATS."""
GUEST = "e"
"""A node without listeners, which leaves for good and comes again."""
AREA = (-0.9, -0.9, 0.9, 0.9)


class Wire:
    """A TCP connection from one node to NATS that can be cut: a forwarder on a port of its own."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._is_cut = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=50)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections and take no other."""
        self._is_cut = True
        for pair in self._pairs:
            _close(*pair)
        self._pairs.clear()

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_cut:
                    raise ConnectionRefusedError
                there = socket.create_connection(("127.0.0.1", self._target), timeout=2)
                there.settimeout(None)
            except OSError:
                _close(here)
                continue
            self._pairs.append((here, there))
            for one, other in ((here, there), (there, here)):
                with suppress(OSError):  # it may have been cut meanwhile
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_forward, args=(one, other), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _close(source, target)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class Trouble:
    """Does harm to a network, and mends it. `story` says what was done when."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.fleet = LocalCluster(directory)
        self.done: Counter[str] = Counter()
        self.plans = 0
        self.story: list[str] = []
        self.hangs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._victim = ""
        self.directory = directory
        self._rng = rng
        self._config = directory / "nearcast.toml"
        self._config.write_text(CONFIG)
        self._with_door = directory / "door.toml"
        self._with_door.write_text(f'{CONFIG}\n[network]\ndirect = "127.0.0.1:0"\n')
        self._nats_port = free_port()
        self._address = self.fleet.start_nats(self._nats_port)
        self._wires = {name: Wire(self._nats_port) for name in (*NAMES, GUEST)}
        self.ports = {name: free_port() for name in (*NAMES, GUEST)}
        for name in (*NAMES, GUEST):
            self._start(name)
        self.fleet.wait_until_ready()
        self.wait_until_calm()

    def close(self) -> None:
        self.fleet.__exit__(None, None, None)
        for wire in self._wires.values():
            wire.close()

    @property
    def section(self) -> NetworkSection:
        return NetworkSection(join=[self._address])

    def _start(self, name: str) -> ChildProcess:
        """Start a node; what it said in its life before is kept."""
        self.fleet.nodes = [one for one in self.fleet.nodes if one.name != name]
        log = self.directory / f"{name}.log"
        if log.exists():
            with (self.directory / f"{name}.all.log").open("a") as kept:
                kept.write(log.read_text(errors="replace") + "--- a new life\n")
        address = f"nats://127.0.0.1:{self._wires[name].port}"
        config = self._with_door if name in DOORS else self._config
        return self.fleet.start_node(name, self.ports[name], address, config)

    def strike(self) -> None:
        """Do one harm, and undo it."""
        harms: list[Callable[[], None]] = [
            self._kill,
            self._kill,
            self._hang,
            self._nats_hangs,
            self._nats_dies,
            self._cut_off,
            self._leave,
        ]
        harm = self._rng.choice(harms)
        self.done[harm.__name__.strip("_")] += 1
        began_s = time.time()
        harm()
        self.fleet.wait_until_ready()
        self.story.append(
            f"{harm.__name__.strip('_')} {self._victim} {began_s:.1f}–{time.time():.1f}"
        )

    def _kill(self) -> None:
        victim = self._rng.choice(self.fleet.nodes)
        self._victim = victim.name
        os.kill(victim.pid, signal.SIGKILL)
        victim.end(5)
        time.sleep(self._rng.uniform(0, 1.5))
        self._start(victim.name)

    def _hang(self) -> None:
        victim = self._rng.choice(self.fleet.nodes)
        self._victim = victim.name
        began_s = time.time()
        _stop_for(victim.pid, self._rng.choice([0.5, 3.5]))
        self.hangs[victim.name].append((began_s, time.time()))

    def _nats_hangs(self) -> None:
        assert self.fleet._nats is not None
        _stop_for(self.fleet._nats.pid, self._rng.choice([0.5, 4.0]))

    def _nats_dies(self) -> None:
        assert self.fleet._nats is not None
        os.kill(self.fleet._nats.pid, signal.SIGKILL)
        self.fleet._nats.end(5)
        time.sleep(self._rng.uniform(0, 1))
        self.fleet.start_nats(self._nats_port)

    def _cut_off(self) -> None:
        self._victim = self._rng.choice(NAMES)
        wire = self._wires[self._victim]
        wire.cut()
        time.sleep(self._rng.choice([0.5, 4.5]))
        wire.mend()

    def _leave(self) -> None:
        """Let the guest leave for good, and come again."""
        guest = next(one for one in self.fleet.nodes if one.name == GUEST)
        with suppress(NearcastError):
            asyncio.run(ask_to_leave(self.section, GUEST))
            guest.end(20)
        if not guest.is_alive:
            self._start(GUEST)

    def change_plan(self) -> None:
        """Let the nodes follow another plan; tried again while NATS has just come back."""
        xs = [self._rng.uniform(-0.5, 0.5) for _ in range(200)]
        ys = [self._rng.uniform(-0.1, 0.1) for _ in range(200)]
        xs += [lon for lon, _ in SPOTS]
        ys += [lat for _, lat in SPOTS]
        counts = CellCounts.from_positions(AREA, [], xs, ys, depth=5)
        capacity = self._rng.choice([20, 40, 80])
        plan = Plan.build(AREA, [], counts, capacity=capacity, version=self.plans + 1)
        for _ in range(40):
            with suppress(NearcastError):
                offer = asyncio.run(offer_plan(self.section, plan, renumbers=True))
                self.plans = offer.plan.version
                return
            time.sleep(0.5)
        message = "the plan could not be shared"
        raise RuntimeError(message)

    def is_calm(self) -> bool:
        """Tell whether all nodes are linked and follow the last plan."""
        try:
            members = asyncio.run(look(self.section))
        except NearcastError:
            return False
        links = [link for one in members for link in one.links.values()]
        count = len(NAMES) + 1
        return (
            len(members) == count
            and len(links) == count * (count - 1)
            and all(link.is_up and not link.problem for link in links)
            and {one.plan for one in members} == {self.plans}
        )

    def wait_until_calm(self, most_s: float = 180.0) -> bool:
        """Wait until everything is mended; tell whether it is."""
        deadline = time.monotonic() + most_s
        while not self.is_calm():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True


def _stop_for(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
