"""Real peers, each a process with a port for peers and one for MQTT, and stock MQTT clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.commands import ENVIRON, NEARCAST, nearcast
from tests.support.forked import Forked
from tests.support.real_cluster import PahoClient
from tests.support.space_sections import placed_section
from tests.support.waiting import END_S, wait_for

from nearcast.server.local_cluster import free_port

SHOPS = '[durability]\nmode = "off"\n' + placed_section("shops", price=(0, 100))


def offer(price: float, lon: float = 0.0, lat: float = 0.0, **more: Any) -> bytes:
    return json.dumps({"price": price, "lon": lon, "lat": lat, **more}).encode()


class RealPeers:
    """Peers by name; each keeps its ports when it is started again."""

    def __init__(self, directory: Path, config: str = SHOPS, peer: str = "") -> None:
        self.directory = directory
        self.config = directory / "nearcast.toml"
        self.config.write_text(f"{config}\n[peer]\n{peer}\n")
        self.addresses: dict[str, str] = {}
        self.ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.clients: list[PahoClient] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        for name in list(self.processes):
            self.kill(name)

    def begin(self, name: str, *contacts: str, config: Path | None = None) -> None:
        """Start a peer without waiting for it; contacts are names of peers."""
        address = self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")
        port = self.ports.setdefault(name, free_port())
        told = [part for one in contacts for part in ("--contact", self.addresses[one])]
        options = ["--listen", address, *told, "--port", str(port), "--json"]
        with (self.directory / f"{name}.log").open("a") as log:
            self.processes[name] = Forked(
                [*NEARCAST, "peer", *options, "--config", str(config or self.config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=ENVIRON,
                cwd=self.directory,
                text=True,
            )

    def start(self, name: str, *contacts: str) -> None:
        self.begin(name, *contacts)
        self.wait_until_ready(name)

    def wait_until_ready(self, name: str) -> None:
        wait_for(
            lambda: '"ready"' in self.log(name) or self.processes[name].poll() is not None,
            said=lambda: self.log(name),
        )
        assert self.processes[name].poll() is None, self.log(name)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        if process.poll() is None:
            os.kill(process.pid, number)
        process.wait(END_S)
        (self.directory / f"{name}.log").write_text("")

    def client(self, peer: str, name: str = "") -> PahoClient:
        one = PahoClient(self.ports[peer], name)
        self.clients.append(one)
        return one

    def tree(self, peer: str) -> dict[str, Any]:
        """Return what `nearcast peers --json` prints."""
        done = nearcast(
            "peers", "--contact", self.addresses[peer], "--config", str(self.config), "--json"
        )
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def is_whole(self, peer: str, count: int) -> bool:
        """Return whether all peers are in one tree."""
        space = self.tree(peer)["spaces"]["shops"]
        return (space["peers"], space["roots"]) == (count, 1)

    def is_repaired(self, peer: str, count: int) -> bool:
        """Return whether all peers are in one tree, with their boxes, and know of nobody dead."""
        tree = self.tree(peer)
        space = tree["spaces"]["shops"]
        if (space["peers"], space["roots"]) != (count, 1):
            return False
        members = [(one["peer"], one["spaces"]["shops"]) for one in tree["peers"]]
        seats = {(name, seat["seat"]): seat for name, one in members for seat in one["seats"]}
        below = {
            address: {(one[0], one[1]) for group in seat["groups"] for one in group}
            for address, seat in seats.items()
        }
        return (
            all(one["is_placed"] for _, one in members)
            and all(some <= seats.keys() for some in below.values())
            and all(
                address in below.get((seat["parent"][0], seat["parent"][1]), ())
                for address, seat in seats.items()
                if seat["parent"] is not None
            )
        )
