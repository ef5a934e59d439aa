"""Origins of web pages, rates, file modes, a reload without descriptors, and what is open."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.talkers import Raw
from tests.support.broker_process import BrokerProcess
from tests.support.commands import nearcast
from tests.support.waiting import wait_for

from nearcast.config import Configuration, ListenerSection, read
from nearcast.mqtt import Connect, Pingreq, Publish, PublishAnswer, Subscribe, encode_packet
from nearcast.mqtt.packets import FilterRequest
from nearcast.server.auth.rates import Bucket
from nearcast.server.file_modes import wide_files
from nearcast.server.hardening import open_points
from nearcast.server.listeners.message_rates import PacketScanner, RatedReads
from nearcast.server.listeners.origins import OriginRule
from nearcast.server.local_cluster import free_port

REQUEST = (
    "GET /mqtt HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n{more}\r\n"
)


# --- web pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "host", "origin", "is_welcome"),
    [
        ({}, "127.0.0.1:8083", None, True),
        ({}, "anything", None, True),  # no browser: its login decides
        ({}, "127.0.0.1:8083", "http://127.0.0.1:8083", True),
        ({}, "localhost:8083", "http://localhost:8083", True),
        ({}, "[::1]:8083", "http://[::1]:8083", True),
        ({}, "127.0.0.1:8083", "http://127.0.0.1:8084", False),
        ({}, "127.0.0.1:8083", "https://evil.example", False),
        ({}, "127.0.0.1:8083", "null", False),
        ({}, "127.0.0.1:8083", "", False),
        ({}, "127.0.0.1:8083", "http://127.0.0.1:x", False),
        ({}, "evil.example:8083", "http://evil.example:8083", False),  # DNS rebinding
        ({"host": "0.0.0.0"}, "a.org:8083", "http://a.org:8083", True),
        ({"host": "0.0.0.0"}, "a.org", "https://a.org", True),
        ({"host": "0.0.0.0"}, "a.org", "https://a.org:444", False),
        ({"origins": ["https://A.org"]}, "127.0.0.1", "https://a.org:443", True),
        ({"origins": ["https://a.org"]}, "127.0.0.1", "http://a.org", False),
        ({"origins": ["https://a.org"]}, "127.0.0.1", "https://a.org.evil.example", False),
        ({"origins": ["*"]}, "127.0.0.1", "https://evil.example", True),
        ({"hosts": ["a.org"], "origins": ["*"]}, "b.org", "https://a.org", False),
        ({"hosts": ["a.org"]}, "b.org", None, False),
        ({"hosts": ["a.org"]}, "a.org:8083", None, True),
    ],
)
def test_a_page_of_another_origin_or_name_is_refused(
    section: dict[str, Any], host: str, origin: str | None, is_welcome: bool
):
    rule = OriginRule.of(ListenerSection.model_validate({"kind": "ws", **section}))
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    assert (rule.objection(headers) == "") is is_welcome


@pytest.mark.server
def test_a_refused_page_hears_403_and_is_no_client(tmp_path: Path):
    port = free_port()
    broker = BrokerProcess(tmp_path, listener=[{"kind": "ws", "port": port}]).start()

    def answer(host: str, more: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 30) as one:
            one.sendall(REQUEST.format(host=host, more=more).encode())
            return one.recv(100).split(b"\r\n")[0]

    here = f"127.0.0.1:{port}"
    assert b"101" in answer(here, f"Origin: http://{here}\r\n")
    assert b"403" in answer(here, "Origin: https://evil.example\r\n")
    assert b"403" in answer("evil.example", "Origin: http://evil.example\r\n")
    assert b"400" in answer(here, f"Origin: http://{here}\r\nOrigin: https://evil.example\r\n")
    broker.end()


# --- rates ----------------------------------------------------------------------------------------

PACKETS = st.sampled_from(
    [
        encode_packet(one)
        for one in (
            Connect("c"),
            Publish("a", b"x"),
            Publish("a", b"x" * 200, 1, packet_id=1),
            Subscribe(1, (FilterRequest("a"),)),
            Pingreq(),
        )
    ]
)


@given(st.lists(PACKETS, max_size=12), st.lists(st.integers(0, 3), min_size=1), st.data())
def test_the_scanner_finds_the_publications_of_any_portions(
    packets: list[bytes], allowances: list[int], data: st.DataObject
):
    whole, done, count, turn = b"".join(packets), b"", 0, 0
    scanner, rest, position = PacketScanner(), b"", 0
    while position < len(whole) or rest:
        step = data.draw(st.integers(1, 50))
        rest += whole[position : position + step]
        position += step
        most = allowances[turn % len(allowances)] if turn < 50 else 9
        turn += 1
        end, found = scanner.cut(rest, most)
        assert found <= most
        done, rest, count = done + rest[:end], rest[end:], count + found
    assert done == whole
    assert count == sum(one[0] >> 4 == 3 for one in packets)


def test_what_is_no_mqtt_goes_on_to_the_broker():
    assert PacketScanner().cut(b"\x30\xff\xff\xff\xff\xff" + b"x" * 50, 5) == (56, 1)


class Timers:
    """Functions that would be called later."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_later(self, _delay: float, callback: Any) -> None:
        self.due.append(callback)


def test_a_client_beyond_its_rate_is_read_more_slowly_and_loses_nothing():
    bucket, timers, reading = Bucket(0.001, 2, 2, 0), Timers(), [True]
    handled: list[bytes] = []
    reads = RatedReads(
        lambda: [bucket],
        handled.append,
        lambda: reading.__setitem__(0, False),
        lambda: reading.__setitem__(0, True),
        timers,
    )
    data = encode_packet(Publish("a", b"x")) * 5
    reads.take(data)
    assert (len(b"".join(handled)), reading) == (2 * len(data) // 5, [False])
    for now_ms in (500, 1_000, 2_000, 3_000):
        bucket.fill(now_ms)
        timers.due.pop()()
    assert (b"".join(handled), reading, timers.due) == (data, [True], [])
    reads.take(data)
    reads.end()  # a client that has closed counts on it
    assert b"".join(handled) == data * 2


@pytest.mark.server
def test_a_flood_is_slowed_down_and_a_bystander_is_not(tmp_path: Path):
    rates = {"messages_client": "20/s burst 10", "connections_address": "50/s burst 50"}
    broker = BrokerProcess(tmp_path, rates=rates).start()
    flood, bystander = Raw(broker.port), Raw(broker.port)
    assert (flood.login("flood"), bystander.login("by")) == (0, 0)
    began_s = time.monotonic()
    flood.send(*(Publish("a", b"x", 1, packet_id=number) for number in range(1, 31)))
    slowest_s = 0.0
    for number in range(1, 6):
        asked_s = time.monotonic()
        bystander.send(Publish("b", b"x", 1, packet_id=number))
        assert isinstance(bystander.next(), PublishAnswer)
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
    assert slowest_s < 0.5
    for _ in range(30):
        assert isinstance(flood.next(), PublishAnswer)
    assert time.monotonic() - began_s > 0.9  # 20 beyond the burst of 10, at 20 a second
    ended = sum(Raw(broker.port).login(f"c{number}") == -1 for number in range(70))
    assert ended > 5  # the 50 of the burst are used up
    broker.end()


# --- files, reload, the check ---------------------------------------------------------------------


@pytest.mark.server
def test_what_a_broker_writes_is_its_owners_alone(tmp_path: Path):
    config = tmp_path / "nearcast.toml"
    (tmp_path / "users").write_text("")
    (tmp_path / "users").chmod(0o644)
    config.write_text(
        f'[node]\ndata = "data"\n[auth]\nusers = "users"\nanonymous = "always"\n'
        f'[[listener]]\nport = {free_port()}\n[log]\nevents = "full"\nsegment = "1s"\n'
        '[audit]\nfile = "data/audit.log"\n'
    )
    from tests.support.commands import served

    with served("--config", str(config), cwd=tmp_path) as ports:
        raw = Raw(ports["tcp"])
        assert raw.login("c", clean_start=False) == 0
        raw.send(Publish("a", b"x", 1, retain=True, packet_id=1))
        raw.next()
        raw.close()
    wait_for(lambda: any(tmp_path.rglob("*.parquet")))
    written = list((tmp_path / "data").rglob("*"))
    assert len(written) > 8
    wide = {str(one): oct(one.stat().st_mode) for one in written if one.stat().st_mode & 0o077}
    assert wide == {}
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.server
def test_a_reload_without_descriptors_changes_nothing_and_ends_nothing(tmp_path: Path):
    broker = BrokerProcess(tmp_path).start()
    bystander = Raw(broker.port)
    assert bystander.login() == 0
    Path(broker.reload_path).write_text(json.dumps(broker.sections))
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_until_said("the old one stays")
    bystander.send(Publish("a", b"", 1, packet_id=1))
    assert isinstance(bystander.next(), PublishAnswer)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
    assert Raw(broker.port).login("again") == 0
    broker.end()


OPEN = """
[auth]
anonymous = "always"
[[listener]]
kind = "ws"
host = "0.0.0.0"
origins = ["*"]
[auth.jwt]
keys = "http://auth.example.org/keys"
[network]
join = ["nats://10.0.0.1:4222"]
insecure = true
[rates]
guesses = 0
[log]
metrics_port = "0.0.0.0:9100"
"""
SPACE = (
    '[[space]]\nname = "s"\ntopics = "s/#"\nlongitude = "lon"\nlatitude = "lat"\npositions = "{}"\n'
    "[space.attributes]\nlon = {{ low = -180, high = 180 }}\nlat = {{ low = -90, high = 90 }}\n"
)
CLOSED = """
[node]
data = "closed"
[auth]
anonymous = "never"
[[auth.rules]]
user = "ann"
topic = "a/#"
[[listener]]
kind = "wss"
host = "0.0.0.0"
certificate = "a.pem"
key = "a.key"
tls_minimum = "1.3"
hosts = ["a.org"]
[rates]
connections_address = "20/s burst 100"
messages_client = "1000/s"
[audit]
file = "audit.log"
"""


def configured(text: str) -> Configuration:
    reading = read(text, {})
    assert reading.problems == ()
    assert reading.configuration is not None
    return reading.configuration


def test_the_strict_check_names_what_is_open():
    keys = [one.key for one in open_points(configured(OPEN))]
    assert keys[:13] == [
        "listener[0].kind",
        "listener[0].origins",
        "listener[0].hosts",
        "auth.anonymous",
        "auth.jwt.keys",
        "auth.jwt",
        "audit.file",
        "rates.guesses",
        "rates.connections_address",
        "rates.messages_client",
        "log.metrics_port",
        "network.insecure",
        "network.node_key",
    ]
    assert open_points(configured(CLOSED)) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "auth.rules"),
        ('[[auth.rules]]\ntopic = "a"\n[[auth.rules]]\ntopic = "#"', "auth.rules"),
        ('[[listener]]\nproxy_protocol = true\nproxies = ["0.0.0.0/0"]', "listener[0].proxies"),
        ('[http]\naddress = "10.0.0.1:80"\noperators = "who.txt"', "http.certificate"),
        ('[peer]\nlisten = "10.0.0.1:7000"', "peer.key"),
        ('[feed]\nkafka = "kafka://10.0.0.9:9092/city"', "feed.kafka"),
        (SPACE.format("publishers"), "space[0].positions"),
        (SPACE.format("public"), "space[0].positions"),
        (SPACE.format("private") + "[position]\nprobes = 0", "position.probes"),
    ],
)
def test_the_strict_check_names_this(text: str, key: str):
    assert key in [one.key for one in open_points(configured(text))]


@pytest.mark.parametrize(
    "text",
    [
        '[auth]\nanonymous = "never"\n[auth.jwt]\nkeys = "keys.json"\nissuer = "a"\naudience = "b"',
        '[auth]\nanonymous = "never"\nplugin = "badges"',
        '[auth]\nanonymous = "never"\n[[auth.rules]]\nuser = "ann"\n[peer]\nkey = "k"\n'
        'listen = "10.0.0.1:7000"\n[feed]\nkafka = "kafka://127.0.0.1:9092/city"\n'
        + SPACE.format("private"),
    ],
)
def test_the_strict_check_is_content_with_this(text: str):
    assert open_points(configured(text)) == []


def test_files_of_keys_that_others_may_read_or_change_are_named(tmp_path: Path):
    for name, mode in (("node.key", 0o640), ("keys.txt", 0o664), ("jwks.json", 0o646)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    text = (
        f'[network]\nnode_key = "{tmp_path}/node.key"\nnode_keys = "{tmp_path}/keys.txt"\n'
        f'[auth.jwt]\nkeys = "{tmp_path}/jwks.json"\n[node]\ndata = "{tmp_path}/none"\n'
    )
    found = {path.name: oct(mode) for path, mode, _ in wide_files(configured(text))}
    assert found == {"node.key": "0o640", "keys.txt": "0o664", "jwks.json": "0o646"}
    told = [one.todo for one in open_points(configured(text)) if "mode" in one.found]
    assert told == [
        f"chmod go= {tmp_path}/node.key",
        f"chmod go-w {tmp_path}/jwks.json",
        f"chmod go-w {tmp_path}/keys.txt",
    ]
    for name in ("node.key", "keys.txt", "jwks.json"):
        (tmp_path / name).chmod(0o600 if name == "node.key" else 0o644)
    assert wide_files(configured(text)) == []


def test_the_check_reads_keys_of_nodes(tmp_path: Path):
    (tmp_path / "nearcast.toml").write_text('[network]\nnode_key = "a.key"\nnode_keys = "k.txt"\n')
    ran = nearcast("config", "check", cwd=tmp_path)
    assert ran.returncode != 0
    assert "network.node_key: a.key" in ran.stdout + ran.stderr


def test_the_command_says_so_and_fails(tmp_path: Path):
    (tmp_path / "open.toml").write_text(OPEN)
    plain = nearcast("config", "check", "open.toml", cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (0, "")
    ran = nearcast("config", "check", "open.toml", "--strict", cwd=tmp_path)
    assert ran.returncode == 1
    assert "open: auth.anonymous: everybody may connect without a name. Set" in ran.stdout
    told = json.loads(nearcast("config", "check", "open.toml", "--strict", "--json",
                               cwd=tmp_path).stdout)  # fmt: skip
    assert {"key", "found", "todo"} == set(told["open"][0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('join = ["nats://10.0.0.1:4222"]', "without credentials and TLS"),
        ('join = ["tls://10.0.0.1:4222"]', "without credentials and TLS"),
        ('join = ["nats://10.0.0.1:4222"]\nuser = "a"\npassword = "b"', "without credentials"),
        ('join = ["nats://127.0.0.1:4222"]\ndirect = "10.0.0.1:7400"', "needs 'node_key'"),
    ],
)
def test_a_network_that_anybody_could_join_is_refused(text: str, why: str):
    (problem,) = read(f"[network]\n{text}\n", {}).problems
    assert why in str(problem)
    assert read(f"[network]\n{text}\ninsecure = true\n", {}).problems == ()


@pytest.mark.parametrize(
    "text",
    [
        'join = ["nats://127.0.0.1:4222", "nats://[::1]:4222", "nats://localhost:4222"]',
        'join = ["tls://10.0.0.1:4222"]\nuser = "a"\npassword = "b"',
        'join = ["nats://127.0.0.1:4222"]\ndirect = "127.0.0.1:7400"',
    ],
)
def test_a_network_of_this_machine_or_with_credentials_is_not(text: str):
    assert read(f"[network]\n{text}\n", {}).problems == ()


def test_the_broker_of_the_page_leaves_nothing_open():
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    (block,) = [one.partition("```")[0] for one in page.split("```toml\n")[1:2]]
    assert "readings/%c/#" in block
    assert [str(one) for one in open_points(configured(block)) if "mode" not in one.found] == []
