"""`sub` and `pub` against a real broker: certificates, lasting sessions, tracks."""

import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.commands import nearcast, served, start_nearcast

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.mqtt import Publish

pytestmark = pytest.mark.server

CONFIG = """
[[listener]]
kind = "tcp"
port = 0

[[listener]]
kind = "tls"
port = 0
certificate = "{folder}/server.pem"
key = "{folder}/server.key"
client_ca = "{folder}/ca.pem"

[[auth.rules]]
topic = "shops/#"

[[auth.rules]]
user = "ann"
topic = "ann/#"

[[space]]
name = "shops"
positions = "publishers"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
lon = {{ low = -180, high = 180 }}
lat = {{ low = -90, high = 90 }}
"""
PARIS = b'{"lon": 2.35, "lat": 48.85, "number": %d}'


class Ports(NamedTuple):
    tcp: str
    tls: str


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Ports]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "nearcast.toml").write_text(CONFIG.format(folder=certificates))
    with served(cwd=folder) as found:
        yield Ports(str(found["tcp"]), str(found["tls"]))


def subscriber(*arguments: str) -> subprocess.Popen[str]:
    """Start `sub` for one message; it is subscribed on return."""
    started = start_nearcast("sub", *arguments, "-C", "1", "-W", "200")
    assert started.stderr is not None
    told = started.stderr.readline()
    assert told.startswith("Subscribed to"), told + started.stderr.read()
    return started


def test_sub_and_pub_show_a_certificate_and_are_known_by_its_name(ports: Ports, certificates: Path):
    trust = ("-H", "localhost", "-p", ports.tls, "--cafile", str(certificates / "ca.pem"))
    shown = ("--cert", str(certificates / "ann.pem"), "--key", str(certificates / "ann.key"))
    receiver = subscriber(*trust, *shown, "-t", "ann/#")
    done = nearcast("pub", *trust, *shown, "-t", "ann/news", "-m", "hello", "-q", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert receiver.communicate(timeout=200)[0] == "hello\n"

    stranger = nearcast("pub", *trust, "-t", "ann/news", "-m", "hello", "-q", "1")
    assert stranger.returncode
    assert stranger.stderr.startswith("error: ")
    plain = nearcast("pub", "-p", ports.tcp, "-t", "ann/news", "-m", "hello", "-q", "1")
    assert "the broker refused the message to ann/news" in " ".join(plain.stderr.split())


def test_a_lasting_session_gets_what_came_while_it_was_away(ports: Ports):
    wish = ("-p", ports.tcp, "-t", "shops/1", "-q", "1", "--id", "bob", "--session", "1h")
    send = ("pub", "-p", ports.tcp, "-t", "shops/1", "-q", "1", "-m")
    first = subscriber(*wish)
    assert nearcast(*send, "one").returncode == 0
    assert first.communicate(timeout=200) == ("one\n", "")
    assert nearcast(*send, "two").returncode == 0
    again = nearcast("sub", *wish, "-C", "1", "-W", "30")
    assert again.stdout == "two\n"
    assert again.stderr.startswith("Subscribed to shops/1 at QoS 1; the session was resumed\n")


def test_a_track_brings_a_near_subscriber_what_is_published_once_it_is_near(
    ports: Ports, tmp_path: Path
):
    """The broker's answer says when: nobody matches until the track has come near."""
    walk = tmp_path / "walk.csv"
    walk.write_text("t,lon,lat\n100,8.54,47.37\n104,2.351,48.851\n")
    far = "no client is subscribed to shops/near"
    with BlockingClient(BrokerAddress(port=int(ports.tcp))) as publisher:
        wish = ("-t", "shops/near", "-D", "$near=500m", "--track", str(walk))
        receiver = subscriber("-p", ports.tcp, *wish)
        for number in count():
            publisher.notes.clear()
            publisher.publish([Publish("shops/near", PARIS % number, 1)])
            if far not in publisher.notes:
                break
            assert receiver.poll() is None
    assert number > 0, "the first was published while the subscriber was far"
    got = receiver.communicate(timeout=200)[0]
    assert got.encode() == PARIS % number + b"\n"
