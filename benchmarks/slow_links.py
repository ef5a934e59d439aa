"""Network namespaces on this machine, with slow links between them, for `causal_cluster.py`.

Each place is a namespace of its own; a pair of places has a link with a delay that can be changed.
The delay is the kernel's (`tc netem`) where it has that, else packets wait in this process: it
reads them from one end of a TUN link and writes them to the other. Everything happens inside an
outer namespace, so nothing of the machine's own network changes, and all of it ends with the
process. Needs root, or a kernel that lets users have namespaces.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations
from pathlib import Path
from typing import Any

from nearcast.model.errors import EnvironmentProblem
from nearcast.server.local_cluster import ChildProcess

_INSIDE = "NEARCAST_BENCH_NAMESPACE"
_NEW_NET = 0x40000000  # setns: a network namespace
_TUN_SET = 0x400454CA  # ioctl TUNSETIFF
_TUN_BARE = 0x1001  # IFF_TUN | IFF_NO_PI
_PACKET_BYTES = 65_536


def problem_with_namespaces() -> str:
    """Return why there can be no namespaces with slow links here; empty if there can."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no program '{program}' (Debian: iproute2, util-linux)"
    probe = "ip link set lo up && ip link add p0 type veth peer name p1"
    command = [*_unshared(), "sh", "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespace can be made here ({done.stderr.strip()})"
    return ""


def _unshared() -> list[str]:
    return ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]


def run_inside(module: str, arguments: list[str]) -> int:
    """Run a module again in a network namespace of its own; return how it ended."""
    command = [*_unshared(), sys.executable, "-m", module, *arguments]
    environment, root = {**os.environ, _INSIDE: "1"}, Path(__file__).parents[1]
    return subprocess.run(command, env=environment, cwd=root, check=False).returncode


def is_inside() -> bool:
    """Tell whether this process has a namespace of its own."""
    return _INSIDE in os.environ


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace: how to run something in it, and where it is seen from this process."""

    name: str
    pid: int
    address: str

    def command(self, *words: str) -> list[str]:
        """Return a command that runs in this place."""
        return ["nsenter", "-t", str(self.pid), "-n", *words]


class SlowLinks:
    """Places, each linked to all others and, without delay, to this process.

    `address(a, b)` is where `b` is seen from `a`. `delay` changes a link, both ways. A context
    manager; places end with it.
    """

    def __init__(self, names: list[str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nearcast-links-")
        self._holders: list[ChildProcess] = []
        self._addresses: dict[tuple[str, str], str] = {}
        self._wires: dict[frozenset[str], Callable[[float], None]] = {}
        self._relay: Relay | None = None
        _run("ip", "link", "set", "lo", "up")
        self.way = "tc netem" if _has_netem() else "TUN links that wait"
        self.places = {name: self._open(name, number) for number, name in enumerate(names)}
        for number, (one, other) in enumerate(combinations(names, 2)):
            self._link(self.places[one], self.places[other], number)

    def __enter__(self) -> SlowLinks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._relay is not None:
            self._relay.end()
        for holder in self._holders:
            holder.ask_to_end()
            holder.end(2)
        self._directory.cleanup()

    def address(self, here: str, there: str) -> str:
        """Return where a place is seen from another."""
        return self._addresses[here, there]

    def delay(self, one: str, other: str, delay_ms: float) -> None:
        """Let packets between two places take so long, each way."""
        self._wires[frozenset((one, other))](delay_ms)

    def _open(self, name: str, number: int) -> Place:
        command, log = ["unshare", "-n", "sleep", "infinity"], Path(self._directory.name) / name
        holder = ChildProcess(name, 0, command, log)
        self._holders.append(holder)
        while _namespace(holder.pid).stat().st_ino == _namespace("self").stat().st_ino:
            time.sleep(0.005)
        place = Place(name, holder.pid, f"10.77.{number}.2")
        _run(*place.command("ip", "link", "set", "lo", "up"))
        _run("ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "home")
        _run("ip", "link", "set", "home", "netns", str(holder.pid))
        _run("ip", "addr", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
        _run("ip", "link", "set", f"to{number}", "up")
        _run(*place.command("ip", "addr", "add", f"{place.address}/24", "dev", "home"))
        _run(*place.command("ip", "link", "set", "home", "up"))
        return place

    def _link(self, one: Place, other: Place, number: int) -> None:
        device = f"slow{number}"
        make = self._link_by_kernel if self.way == "tc netem" else self._link_by_hand
        wire = make(one, other, device)
        ends = (one, f"10.78.{number}.1"), (other, f"10.78.{number}.2")
        for (place, mine), (peer, theirs) in (ends, ends[::-1]):
            self._addresses[place.name, peer.name] = theirs
            _run(*place.command("ip", "addr", "add", mine, "peer", theirs, "dev", device))
            _run(*place.command("ip", "link", "set", device, "up"))
        self._wires[frozenset((one.name, other.name))] = wire

    def _link_by_kernel(self, one: Place, other: Place, device: str) -> Callable[[float], None]:
        far = ("peer", "name", device, "netns", str(other.pid))
        _run(*one.command("ip", "link", "add", device, "type", "veth", *far))

        def delay(delay_ms: float) -> None:
            for place in (one, other):
                netem = ("root", "netem", "delay", f"{delay_ms}ms", "limit", "100000")
                _run(*place.command("tc", "qdisc", "replace", "dev", device, *netem))

        return delay

    def _link_by_hand(self, one: Place, other: Place, device: str) -> Callable[[float], None]:
        if self._relay is None:
            self._relay = Relay()
        return self._relay.add(_open_tun(one, device), _open_tun(other, device))


class Relay:
    """Carries packets between pairs of TUN ends, each after its link's delay, in their order."""

    def __init__(self) -> None:
        self._far: dict[int, int] = {}
        self._delay_s: dict[int, float] = {}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._last: dict[int, float] = {}
        self._count = 0
        self._poll = select.epoll()
        self._is_over = False
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def add(self, one: int, other: int) -> Callable[[float], None]:
        """Join two ends; return what changes the delay between them."""
        self._far.update({one: other, other: one})
        for end in (one, other):
            self._delay_s[end] = 0.0
            self._poll.register(end, select.EPOLLIN)
        if not self._thread.is_alive():
            self._thread.start()

        def delay(delay_ms: float) -> None:
            self._delay_s[one] = self._delay_s[other] = delay_ms / 1000

        return delay

    def end(self) -> None:
        """Stop carrying, close all ends."""
        self._is_over = True
        self._thread.join()
        for end in self._far:
            os.close(end)
        self._poll.close()

    def _carry(self) -> None:
        while not self._is_over:
            wait_s = 0.1 if not self._due else min(0.1, self._due[0][0] - time.monotonic())
            for end, _ in self._poll.poll(max(0.0, wait_s)):
                self._take(end)
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, end, packet = heappop(self._due)
                with suppress(OSError):  # the other end is not up yet
                    os.write(end, packet)

    def _take(self, end: int) -> None:
        packet = os.read(end, _PACKET_BYTES)
        at = max(time.monotonic() + self._delay_s[end], self._last.get(end, 0.0))
        self._last[end] = at
        self._count += 1
        heappush(self._due, (at, self._count, self._far[end], packet))


def _namespace(pid: int | str) -> Path:
    return Path(f"/proc/{pid}/ns/net")


def _open_tun(place: Place, device: str) -> int:
    """Return a TUN device that stands in another namespace; its packets are read here."""
    libc = ctypes.CDLL(None, use_errno=True)
    with _namespace("self").open() as ours, _namespace(place.pid).open() as theirs:
        if libc.setns(theirs.fileno(), _NEW_NET):
            raise EnvironmentProblem(
                f"a namespace cannot be entered ({os.strerror(ctypes.get_errno())})"
            )
        try:
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, _TUN_SET, struct.pack("16sH22x", device.encode(), _TUN_BARE))
        finally:
            libc.setns(ours.fileno(), _NEW_NET)
    return end


def _has_netem() -> bool:
    """Try it on a link that nobody needs."""
    _run("ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
    try:
        command = ["tc", "qdisc", "add", "dev", "probe0", "root", "netem", "delay", "1ms"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
    finally:
        _run("ip", "link", "del", "probe0")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentProblem(f"'{' '.join(words)}' failed: {done.stderr.strip()}")


def measured_inside(module: str, rounds: int) -> dict[str, Any]:
    """Return what a benchmark finds that runs once more, inside the namespaces."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        code = run_inside(module, ["--json", file.name, "--rounds", str(rounds)])
        if code:
            raise EnvironmentProblem(f"the cluster did not work (exit code {code})")
        found: dict[str, Any] = json.loads(Path(file.name).read_text())
        return found


def found_by_hand(
    doc: str | None, run: Callable[[bool, int | None], dict[str, Any]]
) -> dict[str, Any]:
    """Run as a command (`--quick`, `--rounds`), and return what is to be shown.

    With `--json` it goes to a file instead.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = run(arguments.quick, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))
        return {"rows": []}
    if "skipped" in found:
        print(f"skipped: {found['skipped']}")
    return found
