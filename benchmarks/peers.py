"""Other brokers for the benchmarks, a declaration each; none of them has to be there.

A program is found on the PATH, or where the environment variable NEARCAST_PEERS says:

    NEARCAST_PEERS="mosquitto-2.1=/opt/mosquitto/mosquitto flashmq=/opt/flashmq/flashmq"

The part of a name before the first dash is the declaration, so two versions can run side by side.
All get a configuration of the same meaning: no persistence, no log, no limit of what is queued or
in flight that a load could reach, TCP_NODELAY, anonymous clients, one thread where that can be set.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from nearcast import compiling
from nearcast.server.local_cluster import free_port

NAMED = "NEARCAST_PEERS"
FLOOR = "floor"


@dataclass(frozen=True)
class Peer:
    """How a broker is started. `{program}`, `{port}`, `{spare}` (another port), `{folder}` and
    `{certificate}` (with `.key` beside it) are filled in everywhere, `{more}` is of the listener.
    """

    program: str
    command: str
    file: str = ""
    """The text of `{folder}/conf`."""
    listeners: dict[str, str] = field(default_factory=lambda: {"tcp": ""})
    """What each kind of listener needs; a kind that is not here is not measured."""
    versions: tuple[int, ...] = (4, 5)
    has_wildcards: bool = True
    is_slow: bool = False
    """Gets small loads only, if any."""


PEERS = {
    "mosquitto": Peer(
        "mosquitto",
        "{program} -c {folder}/conf",
        """
listener {port} 127.0.0.1
{more}
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
set_tcp_nodelay true
log_dest none
user root
""",
        {
            "tcp": "",
            "tls": "certfile {certificate}\nkeyfile {certificate}.key",
            "ws": "protocol websockets",
        },
    ),
    "flashmq": Peer(
        "flashmq",
        "{program} --config-file {folder}/conf",
        """
listen {{
  port {port}
  inet4_bind_address 127.0.0.1
  inet_protocol ip4
  tcp_nodelay true
  {more}
}}
allow_anonymous true
thread_count 1
log_level none
log_file {folder}/log
max_qos_msg_pending_per_client 65535
max_qos_bytes_pending_per_client 268435456
client_max_write_buffer_size 268435456
""",
        {
            "tcp": "protocol mqtt",
            "tls": "protocol mqtt\nfullchain {certificate}\nprivkey {certificate}.key",
            "ws": "protocol websockets",
        },
    ),
    "nanomq": Peer(
        "nanomq",
        "{program} start --conf {folder}/conf",
        """
mqtt {{ max_packet_size = 256MB, max_mqueue_len = 65535, max_inflight_window = 65535 }}
listeners.tcp {{ bind = "127.0.0.1:{port}" }}
log {{ to = [file], level = fatal, dir = "{folder}", file = "log" }}
auth {{ allow_anonymous = true, no_match = allow }}
""",
    ),
    "mochi": Peer(
        "mochi",
        "{program} -tcp 127.0.0.1:{port} -ws 127.0.0.1:{spare} -info 127.0.0.1:{spare}",
    ),
    "rumqttd": Peer(
        "rumqttd",
        "{program} -c {folder}/conf",
        """
id = 0
[router]
id = 0
max_connections = 100000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 0
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = 268435455
max_inflight_count = 65535
dynamic_filters = true
""",
        versions=(4,),
    ),
    "aedes": Peer("", "node {folder}/conf {port} {program}", """
import(process.argv[3] + "/aedes.js").then(async ({{ Aedes }}) => {{
  const broker = await Aedes.createBroker({{ queueLimit: 1 << 20, maxClientsIdLength: 64 }});
  const server = require("net").createServer({{ noDelay: true }}, broker.handle);
  server.listen(Number(process.argv[2]), "127.0.0.1");
}});
"""),
    "amqtt": Peer("", sys.executable + " {folder}/conf {port}", """
import asyncio, sys
from amqtt.broker import Broker
async def main():
    broker = Broker({{"listeners": {{"default": {{"type": "tcp", "bind": "127.0.0.1:{port}"}}}},
                     "plugins": {{"amqtt.plugins.authentication.AnonymousAuthPlugin":
                                 {{"allow_anonymous": True}}}}}})
    await broker.start()
    await asyncio.Event().wait()
asyncio.run(main())
""", is_slow=True),
    FLOOR: Peer("", "{program} {port}", versions=(4,), has_wildcards=False),
}  # fmt: skip


def programs() -> dict[str, str]:
    """Return the programs of all peers that can be had, by name."""
    named = dict(one.split("=", 1) for one in os.environ.get(NAMED, "").split())
    unknown = [name for name in named if name.partition("-")[0] not in PEERS]
    if unknown:
        message = f"{NAMED}: nothing is known of {', '.join(unknown)}; known: {', '.join(PEERS)}"
        raise SystemExit(message)
    found = {name: shutil.which(peer.program) for name, peer in PEERS.items() if peer.program}
    found["amqtt"] = "amqtt" if importlib.util.find_spec("amqtt") else None
    found[FLOOR] = _floor()
    return {name: path for name, path in {**found, **named}.items() if path}


def missing() -> list[str]:
    """Return the peers that have no program here."""
    present = {name.partition("-")[0] for name in programs()}
    return [name for name in PEERS if name not in present]


def newest(name: str) -> str:
    """Return the name of the peer's highest version that can be had; without any its plain name."""
    return max((one for one in programs() if one.partition("-")[0] == name), default=name)


def of(name: str) -> list[str]:
    """Return the newest version of a peer, if there is any."""
    return [one for one in programs() if one == newest(name)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add those that say which brokers are measured, for `chosen`."""
    parser.add_argument("--kinds", nargs="*", help="default: ours and all peers that are here")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PROGRAM")


def chosen(given: argparse.Namespace, ours: Sequence[str]) -> list[str]:
    """Return the kinds that are measured; report the peers that are missing."""
    os.environ[NAMED] = " ".join([os.environ.get(NAMED, ""), *given.peer])
    print(f"peers that are not here: {', '.join(missing()) or 'none'}")
    return given.kinds or [*ours, *quick()]


def quick() -> list[str]:
    """Return the peers that can be had, without those for small loads only."""
    return [name for name in programs() if not declared(name).is_slow]


def declared(kind: str) -> Peer:
    """Return the declaration of a peer, whose name may have a version."""
    return PEERS[kind.partition("-")[0]]


def command(kind: str, listener: str, port: int, folder: Path, certificate: Path) -> list[str]:
    """Write the configuration of a peer; return its command line."""
    peer = declared(kind)
    names = {
        "program": programs()[kind],
        "port": port,
        "folder": folder,
        "certificate": certificate,
    }
    more = peer.listeners[listener].format(**names)
    (folder / "conf").write_text(peer.file.format(**names, more=more))
    return [one.format(**names, spare=free_port()) for one in peer.command.split()]


@cache
def _floor() -> str | None:
    """Return the program of `floor.c`, compiled now; None without a compiler."""
    compiler = compiling.compiler()
    if not compiler:
        return None
    path = Path(tempfile.mkdtemp(prefix="nearcast-floor-"), "floor")
    source = Path(__file__).with_name("floor.c")
    subprocess.run([*compiler.split(), "-O2", "-o", str(path), str(source)], check=True)
    return str(path)
