"""PROXY headers: read exactly, from known proxies only, with a real HAProxy and nginx in front."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.talkers import Raw, leave, paho_login
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

from nearcast.model.errors import PeerProtocolError
from nearcast.server.listeners.proxy_header import UNKNOWN, read_header, wanted_bytes
from nearcast.server.local_cluster import free_port

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v2(body: bytes, *, command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + bytes((command, family)) + struct.pack(">H", len(body)) + body


def v4(source: str, port: int = 4711, more: bytes = b"") -> bytes:
    addresses = IPv4Address(source).packed + IPv4Address("10.0.0.1").packed
    return v2(addresses + struct.pack(">HH", port, 1883) + more)


GOOD = [
    (b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 1883\r\n", "192.0.2.7:4711"),
    (b"PROXY TCP6 2001:db8::7 ::1 4711 1883\r\n", "2001:db8::7:4711"),
    (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 1883\r\n", "192.0.2.7:4711"),
    (b"PROXY UNKNOWN\r\n", UNKNOWN),
    (b"PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\n", UNKNOWN),
    (v4("192.0.2.7"), "192.0.2.7:4711"),
    (v4("192.0.2.7", more=b"\x04\0\2ab"), "192.0.2.7:4711"),
    (v2(bytes(16) + IPv4Address("1.2.3.4").packed * 4 + b"\0\1\0\2", family=0x21), "::1"),
    (v2(bytes(216), family=0x31), UNKNOWN),
    (v2(b"", command=0x20, family=0), None),
]


@pytest.mark.parametrize(("header", "address"), GOOD, ids=range(len(GOOD)))
def test_a_header_is_the_same_in_any_portions(header: bytes, address: str | None):
    for end in range(1, len(header)):
        assert read_header(header[:end]) is None
        assert end < wanted_bytes(header[:end]) <= len(header)
    for rest in (b"", b"\x10\x0c\0\4MQTT", b"\r\n"):
        found = read_header(header + rest)
        assert found is not None
        assert found.size == len(header)
        if address != "::1":
            assert found.address == address


BAD = [
    b"\x10\x0c\0\4MQTT",
    b"GET / HTTP/1.1\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 4711\r\n",
    b"PROXY TCP4 192.0.2.7  192.0.2.1 4711 1883\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 04711 1883\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 65536 1883\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 -1 1883\r\n",
    b"PROXY TCP4 ::1 ::1 4711 1883\r\n",
    b"PROXY TCP4 localhost 192.0.2.1 4711 1883\r\n",
    b"PROXY UDP4 192.0.2.7 192.0.2.1 4711 1883\r\n",
    b"PROXY TCP4 " + b"1" * 200,
    v2(b"", command=0x11),
    v2(b"", command=0x22),
    v2(bytes(3)),
    v2(bytes(35), family=0x21),
    v2(b"", family=0x41),
    v2(b"", family=0x13),
    SIGNATURE + b"\x21\x11\xff\xff" + bytes(100),
]


@pytest.mark.parametrize("header", BAD, ids=range(len(BAD)))
def test_what_is_no_header_is_refused(header: bytes):
    with pytest.raises(PeerProtocolError):
        read_header(header)


@given(st.one_of(st.binary(max_size=300), st.sampled_from(GOOD).map(lambda one: one[0])))
def test_no_bytes_break_the_reader(data: bytes):
    try:
        found = read_header(data)
    except PeerProtocolError:
        return
    if found is None:
        assert wanted_bytes(data) > len(data)
    else:
        assert found.size <= len(data)


# --- at a broker ----------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = behind_proxies(tmp_path)
    yield made.start()
    made.end()


def behind_proxies(folder: Path, **sections: object) -> BrokerProcess:
    directory = folder / "broker"
    directory.mkdir()
    listeners = [
        {"kind": "tcp", "port": free_port(), "proxy_protocol": True},
        {"kind": "ws", "port": free_port(), "proxy_protocol": True, "origins": ["*"]},
    ]
    auth = {"anonymous": "loopback"}
    return BrokerProcess(directory, listener=listeners, auth=auth, **sections)


@pytest.mark.server
def test_loopback_means_the_client_and_not_the_proxy(broker: BrokerProcess):
    for header, reason in (
        (b"PROXY TCP4 127.0.0.1 127.0.0.1 4711 1883\r\n", 0),
        (v4("127.0.0.1"), 0),
        (v2(b"", command=0x20, family=0), 0),  # the proxy itself
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 1883\r\n", 0x87),
        (v4("192.0.2.7"), 0x87),
        (b"PROXY UNKNOWN\r\n", 0x87),
        (v2(bytes(216), family=0x31), 0x87),
    ):
        assert Raw(broker.port, header).login() == reason, header
    in_two = Raw(broker.port, v4("127.0.0.1")[:7])
    in_two.socket.sendall(v4("127.0.0.1")[7:])
    assert in_two.login() == 0


@pytest.mark.server
def test_without_a_header_nothing_is_answered_and_others_are_served(broker: BrokerProcess):
    bad = Raw(broker.port)
    assert bad.login() == -1
    for header in BAD:
        raw = Raw(broker.port, header)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.next() is None
    assert Raw(broker.port, v4("127.0.0.1")).login() == 0
    assert "PROXY header" in broker.said()


@pytest.mark.server
def test_a_header_of_a_stranger_is_refused(tmp_path: Path):
    tmp_path.chmod(0o700)
    section = {
        "kind": "tcp",
        "port": free_port(),
        "proxy_protocol": True,
        "proxies": ["10.0.0.0/8"],
    }
    broker = BrokerProcess(tmp_path, listener=[section]).start()
    assert Raw(broker.port, v4("127.0.0.1")).login() == -1
    assert "no proxy of this listener" in broker.end()


PROXIES: dict[str, tuple[str, str]] = {
    "haproxy v1": ("haproxy", "send-proxy"),
    "haproxy v2": ("haproxy", "send-proxy-v2"),
    "nginx": ("nginx", ""),
}


def configured(program: str, how: str, front: int, broker: BrokerProcess, folder: Path) -> Path:
    """Write the configuration of a proxy in front of a broker."""
    if program == "haproxy":
        text = f"""
global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen front
    bind 127.0.0.1:{front}
    server broker 127.0.0.1:{broker.port} {how}
"""
    else:
        modules = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
        load = f"load_module {modules};" if modules.exists() else ""
        text = f"""
{load}
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 100; }}
stream {{
    server {{
        listen 127.0.0.1:{front};
        proxy_pass 127.0.0.1:{broker.port};
        proxy_protocol on;
    }}
}}
"""
    path = folder / f"{program}.conf"
    path.write_text(text)
    return path


def program_of(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed (scripts/peers.sh)")
    return found


@pytest.mark.server
@pytest.mark.parametrize("kind", PROXIES)
def test_a_real_proxy_tells_where_clients_are(kind: str, tmp_path: Path):
    name, how = PROXIES[kind]
    program, front, audit = program_of(name), free_port(), tmp_path / "audit.log"
    broker = behind_proxies(tmp_path, audit={"file": str(audit)}).start()
    path = configured(name, how, front, broker, tmp_path)
    options = {
        "haproxy": ["-db", "-f", str(path)],
        "nginx": ["-p", str(tmp_path), "-c", str(path)],
    }[name]
    with subprocess.Popen([program, *options], stderr=subprocess.PIPE) as proxy:
        try:
            wait_for(lambda: _is_open(front))
            reason, client = paho_login(front, source="127.0.0.2")
            assert reason == 0  # from loopback, by way of the proxy
            leave(client)
        finally:
            proxy.terminate()
            proxy.communicate()
            broker.end()
    lines = map(json.loads, audit.read_text().splitlines())
    told = [one["address"] for one in lines if one["event"] == "client_connected"]
    assert [one.partition(":")[0] for one in told] == ["127.0.0.2"]  # the proxy has 127.0.0.1


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.server
def test_a_client_behind_a_web_proxy_is_none_of_this_machine(tmp_path: Path):
    """An nginx that does not say so by a PROXY header, as most are: its clients are strangers."""
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    program = program_of("nginx")
    directory = tmp_path / "broker"
    directory.mkdir()
    port, front = free_port(), free_port()
    section = {"kind": "ws", "port": port, "origins": ["*"]}
    broker = BrokerProcess(directory, listener=[section]).start()
    path = tmp_path / "nginx.conf"
    path.write_text(f"""
daemon off;
master_process off;
pid {tmp_path}/nginx.pid;
error_log stderr;
events {{ worker_connections 100; }}
http {{
    access_log off;
    client_body_temp_path {tmp_path}/1; proxy_temp_path {tmp_path}/2;
    fastcgi_temp_path {tmp_path}/3; uwsgi_temp_path {tmp_path}/4; scgi_temp_path {tmp_path}/5;
    server {{
        listen 127.0.0.1:{front};
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
            proxy_set_header X-Forwarded-For $remote_addr;
        }}
    }}
}}
""")

    def login(at: int) -> int:
        found: list[int] = []
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            "c",
            protocol=paho.MQTTv5,
            transport="websockets",
            reconnect_on_failure=False,
        )
        client.ws_set_options("/mqtt")
        client.on_connect = lambda _c, _u, _f, reason, _p: found.append(reason.value)
        client.connect("127.0.0.1", at)
        client.loop_start()
        wait_for(lambda: bool(found))
        leave(client)
        return found[0]

    with subprocess.Popen(
        [program, "-p", str(tmp_path), "-c", str(path)], stderr=subprocess.PIPE
    ) as proxy:
        try:
            wait_for(lambda: _is_open(front))
            assert login(port) == 0
            assert login(front) == 0x87
        finally:
            proxy.terminate()
            proxy.communicate()
            broker.end()
