"""Run classes of attacks beside two bystanders; report what came through, and pings.

    python fuzz/attacks.py --seconds 60                  # for each class, one after the other
    python fuzz/attacks.py --seconds 3600 --together     # an hour of all of them at the same time
    python fuzz/attacks.py --seconds 5 --only slashes,floods
    python fuzz/attacks.py --only connections --rate "50/s burst 100"   # connections_address

The attackers (`attack_classes.py`) are another process; at the same time they pause after each
round, so that all of them use `--share` of a core. The bystanders ping every 20 ms, talk to
each other, and publish secrets. A finding ends the run: a bystander that is closed or not served,
something secret that an attacker gets, something forged that a bystander gets, an exception that
the broker did not foresee. Pings are told as time on the wall until the answer has come to the
bystander's socket; as that time without what the broker waited for a core that others had
(`alone`); and as CPU time of the broker until then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attack_classes import CLASSES, FORGED, NEAR, SECRET, TOGETHER, TOKEN_SECRET
from live import SPACES, Live, living
from nearcast.mqtt import Publish
from nearcast.server import hash_password

EVERY_S = 0.02
LOGIN = ("calm", b"calm is a user")
RULES = [
    {"user": "calm", "topic": "#"},
    {"topic": "eve/#"},
    {"topic": "once/#"},
    {"topic": "shops/#"},
    {"topic": "own/%u/#"},
    {"topic": "own/%c/#"},
]


@dataclass(slots=True)
class Pings:
    """What bystanders saw during one class."""

    wall_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rounds: int = 0

    def line(self, name: str) -> str:
        """Return a row of the report."""
        if not self.wall_s:
            return f"{name:<24} {self.rounds:>8}  no pings"
        told = "".join(_told(times) for times in (self.wall_s, self.alone_s, self.cpu_s))
        return f"{name:<24} {self.rounds:>8} {len(self.wall_s):>7}{told}"


def _told(times_s: list[float]) -> str:
    """Return the median, the 99th percentile and the longest of some times, in ms."""
    times_ms = sorted(1_000 * one for one in times_s)
    shown = (times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100], times_ms[-1])
    return "  " + " ".join(f"{one:7.1f}" for one in shown)


HEAD = f"{'class':<24} {'rounds':>8} {'pings':>7}" + "".join(
    f"  {kind:>7} {'p99':>7} {'most':>7}" for kind in ("wall ms", "alone", "CPU")
)


class Attackers:
    """The process of the attackers, and what it says."""

    def __init__(
        self,
        live: Live,
        directory: Path,
        names: list[str],
        seconds: float,
        seed: int,
        share: float = 0.0,
    ):
        page_port, proxy_port = live.other_ports
        world = {
            "port": live.port,
            "page_port": page_port,
            "proxy_port": proxy_port,
            "pid": live.process.pid,
            "seed": seed,
            "share": share,
            "users": str(directory / "users"),
            "sections": str(live.sections),
        }
        path = directory / "world.json"
        path.write_text(json.dumps(world))
        self.current = ""
        self.findings: list[str] = []
        self.rounds: dict[str, int] = {}
        script = Path(__file__).with_name("attack_classes.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(path), str(seconds), *names],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.current = told.get("begins", self.current)
            if "finding" in told:
                self.findings.append(told["finding"])
            if "ends" in told:
                self.rounds[told["ends"]] = told["rounds"]
                if told["ends"] == self.current:
                    self.current = ""

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Wait for the process, and for all that it has said."""
        if self.is_alive:
            self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def attacked(directory: Path, rate: str | None) -> Iterator[Live]:
    """Run a broker as one that others reach: users, rules, three listeners, private positions."""
    (directory / "secret").write_text(TOKEN_SECRET)
    (directory / "users").write_text(f"{LOGIN[0]}:{hash_password(LOGIN[1])}\n")
    with living(
        login=LOGIN,
        heard=("healthy", "secret/#", "$near/500m/shops/#"),
        auth={
            "users": str(directory / "users"),
            "anonymous": "loopback",
            "rules": RULES,
            "jwt": {
                "keys": str(directory / "secret"),
                "algorithms": ["HS256"],
                "audience": "soak",
            },
        },
        log={"events": "off", "metrics_port": 0},  # an event log takes long to close
        rates={"guesses": 0, "connections_address": rate},  # each guess is checked
        listener=[
            {"port": 0},
            {"port": 0, "kind": "ws"},
            {"port": 0, "proxy_protocol": True, "proxies": ["127.0.0.1"]},
        ],
        space=[{**one, "positions": "private"} for one in SPACES],
    ) as live:
        live.listener.publish("$position", b'{"lon": %f, "lat": %f}' % NEAR)
        live.speaker.conversation.publish(Publish("secret/x", SECRET, 1, True))
        live.speaker.publish("secret/y", SECRET)
        yield live


def look_for_forgeries(live: Live) -> None:
    """Assert that nothing of an attacker has reached the listener where it may not publish."""
    for packet in live.listener.take():
        if isinstance(packet, Publish):
            assert FORGED not in packet.payload, f"forged: {packet.topic}"


def run(
    names: list[str], seconds: float, seed: int, rate: str | None = None, share: float = 0.0
) -> dict[str, Pings]:
    """Run each class for so long; return what bystanders saw. AssertionError is a finding.

    With a `share` of a core all run at the same time, and the pings stand under TOGETHER.
    """
    seen = {name: Pings() for name in ((*names, TOGETHER) if share else names)}
    with tempfile.TemporaryDirectory(prefix="nearcast-attacks-") as folder:
        directory = Path(folder)
        with attacked(directory, rate) as live:
            attackers = Attackers(live, directory, names, seconds, seed, share)
            try:
                while attackers.is_alive:
                    serve_bystanders(live, seen.get(attackers.current))
            finally:
                attackers.end()
            assert not attackers.findings, attackers.findings
            assert attackers.process.returncode == 0, "the attackers failed"
            live.check()
            look_for_forgeries(live)
            live.assert_clean()
    for name, rounds in attackers.rounds.items():
        seen[name].rounds = rounds
    if share:
        assert all(seen[name].rounds for name in names), "a class has not run"
        seen[TOGETHER].rounds = sum(seen[name].rounds for name in names)
    return seen


def serve_bystanders(live: Live, pings: Pings | None) -> None:
    """Let both ping, and now and then talk and publish a secret."""
    live.ping()
    if pings is not None:
        pings.wall_s += [times[-1] for times in live.pings_s.values()]
        pings.alone_s += live.alone_s[-2:]
        pings.cpu_s += live.cpu_s[-2:]
    if len(live.cpu_s) % 20 == 0:
        live.check()
        live.speaker.publish("secret/live", SECRET)
        look_for_forgeries(live)
    time.sleep(EVERY_S)


def go_first() -> None:
    """Let this process have a core as soon as it wants one, if it may; others are as they were.

    Else what the broker does while a bystander waits for a core would count for its ping.
    """
    with contextlib.suppress(PermissionError):
        first = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, first, os.sched_param(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=60.0, help="for each class")
    parser.add_argument("--only", default=",".join(CLASSES), help="names of classes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--rate", help="[rates] connections_address; without it there is none")
    parser.add_argument("--together", action="store_true", help="all classes at the same time")
    parser.add_argument("--share", type=float, default=0.5, help="of a core, for all of them then")
    options = parser.parse_args()
    go_first()
    print(f"seed {options.seed}\n{HEAD}", flush=True)
    names, share = options.only.split(","), options.share if options.together else 0.0
    for group in [names] if options.together else [[name] for name in names]:
        seen = run(group, options.seconds, options.seed, options.rate, share)
        for told, pings in seen.items():
            print(pings.line(told), flush=True)


if __name__ == "__main__":
    main()
