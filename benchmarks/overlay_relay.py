"""What a peer with 1,000 local clients relays per second of its CPU, sockets included.

    python benchmarks/overlay_relay.py [seconds [clients]]

`nearcast peer` runs in a process of its own, with clients that subscribe to three fifths of the
space: so it hosts the tree. Two Python peers in this process share the rest; one publishes for the
other, so that each event comes to the relay over one socket and leaves it over another. CPU time is
that of the relay's process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearcast.config import load
from nearcast.mqtt import Connect, FilterRequest, ProtocolVersion, Subscribe, encode_packet
from nearcast.server.broker_settings import space_settings
from nearcast.server.local_cluster import free_port
from nearcast.server.overlay import Peer

_CONFIG = """
[log]
level = "warning"
[durability]
mode = "off"
[[space]]
name = "field"
topics = "field/#"
[space.attributes]
x = { low = 0, high = 100 }
y = { low = 0, high = 100 }
"""
_PAYLOAD = '{"x": %.4f, "y": %.4f, "n": %d, "text": "%s"}'


class RelayProcess:
    """A `nearcast peer`."""

    def __init__(self, directory: Path) -> None:
        (directory / "nearcast.toml").write_text(_CONFIG)
        [section] = load(directory / "nearcast.toml", {}).space
        self.space = space_settings(section)
        self.listen, self.port = f"127.0.0.1:{free_port()}", free_port()
        code = "import sys; sys.argv[0] = 'nearcast'; from nearcast.cli import main; main()"
        options = ["--listen", self.listen, "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "peer", *options, "--config", "nearcast.toml"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ready"):
                return
        raise SystemExit("the relay did not start")

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9

    def memory_mb(self) -> float:
        """Return the memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def relay_process() -> Iterator[RelayProcess]:
    """Run a relay."""
    with tempfile.TemporaryDirectory() as directory:
        relay = RelayProcess(Path(directory))
        try:
            yield relay
        finally:
            relay.process.terminate()
            relay.process.wait(20)


async def connect_clients(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Connect MQTT clients that subscribe to a stripe each, within x from 0 to 60."""
    writers = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        v311 = ProtocolVersion.V311
        writer.write(encode_packet(Connect(client_id=f"c{number}", version=v311), v311))
        low = number * 59 // count
        wanted = FilterRequest(f"$where/x={low}..{low + 1}/field/#", 0)
        writer.write(encode_packet(Subscribe(1, (wanted,)), v311))
        await reader.readexactly(4)
        writers.append(writer)
    return writers


async def run(relay: RelayProcess, seconds: float, clients: int, qos: int, burst: int) -> None:
    """Publish for a while, and print what the relay did."""
    async with (
        Peer(relay.space, contact=relay.listen) as source,
        Peer(relay.space, contact=relay.listen) as sink,
    ):
        await source.subscribe(where="x = 62..70")
        await sink.subscribe(where="x = 75..100")
        await asyncio.sleep(4)
        began_cpu, began, sent = relay.cpu_s(), time.monotonic(), 0
        acks = source.runtime.members[0].acks
        while time.monotonic() - began < seconds:
            for _ in range(burst):
                text = _PAYLOAD % (75 + sent % 25, sent % 100, 10**6 + sent, "x" * 12)
                await source.publish("field/1", text, qos=qos)
                sent += 1
            await asyncio.sleep(0.0 if qos == 0 or len(acks) < 2_000 else 0.01)
        got = 0
        last = -1
        while got != last:
            last = got
            await asyncio.sleep(1.0)
            got = sink.events._waiting.qsize() + sink.events.dropped
        used = relay.cpu_s() - began_cpu
        print(
            f"QoS {qos}, bursts of {burst}, {clients} clients: {sent} events, {got} arrived, "
            f"{got / used:,.0f} per second of the relay's CPU",
            flush=True,
        )


async def main(seconds: float, clients: int) -> None:
    """Print the figures of docs/peers.md."""
    with relay_process() as relay:
        before = relay.memory_mb()
        writers = await connect_clients(relay.port, clients)
        await asyncio.sleep(3)
        print(f"{clients} clients: {before:.0f} MB before, {relay.memory_mb():.0f} MB with them")
        idle = relay.cpu_s()
        await asyncio.sleep(5)
        print(f"at rest: {(relay.cpu_s() - idle) / 5 * 1000:.1f} ms of CPU a second")
        for qos, burst in ((0, 1), (0, 16), (1, 1), (1, 16)):
            await run(relay, seconds, clients, qos, burst)
        for writer in writers:
            writer.close()


if __name__ == "__main__":
    given = [*sys.argv[1:], "5", "1000"]
    asyncio.run(main(float(given[0]), int(given[1] if len(sys.argv) > 2 else 1000)))
