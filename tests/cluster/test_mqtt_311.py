"""Publications of MQTT 3.1.1 travel between nodes as they are, and mean the same as ever."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_city import SimulatedCity

from nearcast.cluster.peer_handshake import PeerTerms
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.mqtt import ProtocolVersion, Publish
from nearcast.simulator.mqtt_node import SimulatedClient

OLD, NEW = ProtocolVersion.V311, ProtocolVersion.V5
PACKETS, OLDER = b"M", b"O"

assert settings.default is not None
RUNS = max(2, settings.default.max_examples // 2)


@dataclass(frozen=True)
class Said:
    """A run of publications of one shape; `ends_turn`: the node goes on before the next."""

    version: ProtocolVersion
    topic: str
    size: int
    qos: int
    retain: bool
    count: int
    ends_turn: bool


SAID = st.builds(
    Said,
    st.sampled_from((OLD, OLD, NEW)),
    st.sampled_from(("t/1", "t/2", "t/long")),
    st.integers(0, 3),
    st.sampled_from((0, 0, 0, 1)),
    st.booleans(),
    st.integers(1, 4),
    st.booleans(),
)


class Street:
    """A publisher of each version at one node; readers of each version at two."""

    def __init__(self) -> None:
        self.city = SimulatedCity(nodes=2)
        self.readers = {
            (node, version): self.city.client(f"{node}{version}", node, "t/+", version=version)
            for node in ("n0", "n1")
            for version in (OLD, NEW)
        }
        self.city.run(50)
        self._writers = {
            version: self.city.client(f"w{version}", "n0", version=version)
            for version in (OLD, NEW)
        }
        self.city.run(50)
        self._number = 0

    def say(self, said: Said) -> None:
        writer = self._writers[said.version]
        for _ in range(said.count):
            self._number += 1
            payload = b"%06d" % self._number + b"x" * said.size
            writer.publish(Publish(said.topic, payload, said.qos, said.retain))
        if said.ends_turn:
            self.city.turn(writer)

    def finish(self) -> None:
        for one in self._writers.values():
            self.city.turn(one)
        self.city.run(100)


def heard(reader: SimulatedClient, qos: int) -> list[tuple[str, bytes, bool]]:
    return [(one.topic, one.payload, one.retain) for one in reader.received if one.qos == qos]


@settings(max_examples=RUNS)
@given(st.lists(SAID, max_size=12))
def test_readers_elsewhere_hear_the_same_in_the_same_order(sayings: list[Said]):
    street = Street()
    for one in sayings:
        street.say(one)
    street.finish()
    total = sum(one.count for one in sayings)
    for version in (OLD, NEW):
        here, there = (street.readers[node, version] for node in ("n0", "n1"))
        assert len(here.received) == total
        for qos in (0, 1):
            assert heard(there, qos) == heard(here, qos)


def kinds(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return where the kinds of what is sent between nodes are noted from now on."""
    sent: list[bytes] = []
    send = PeerRegistry.send

    def note(self: PeerRegistry, peer: object, kind: bytes, content: bytes, **ways: bool) -> None:
        sent.append(kind)
        send(self, peer, kind, content, **ways)  # type: ignore[arg-type]

    monkeypatch.setattr(PeerRegistry, "send", note)
    return sent


PLAIN = Said(OLD, "t/1", 0, 0, retain=False, count=3, ends_turn=True)


def test_only_plain_packets_of_the_older_version_travel_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    street = Street()
    sent = kinds(monkeypatch)
    street.say(PLAIN)
    street.finish()
    assert sent == [OLDER]
    for other in (replace(PLAIN, version=NEW), replace(PLAIN, qos=1)):
        street.say(other)
        street.finish()
        assert OLDER not in sent[1:]
        assert sent.pop() == PACKETS


def test_a_node_of_the_version_before_gets_what_it_understands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PeerTerms, "version_with", staticmethod(lambda _greeting: 1))
    street = Street()
    sent = kinds(monkeypatch)
    street.say(PLAIN)
    street.finish()
    assert set(sent) == {PACKETS}
    assert heard(street.readers["n1", OLD], 0) == heard(street.readers["n0", OLD], 0)


@pytest.mark.parametrize("packets", [b"\x30\x02\x00\x05", b"\x10\x00", b"\x30\xff\xff\xff\xff\x01"])
def test_what_makes_no_sense_begins_the_link_anew_and_nothing_else(packets: bytes):
    street = Street()
    peer = street.city.nodes["n0"].mesh.peers["n1"]
    street.city.nodes["n0"].mesh.neighbours.send(peer, OLDER, packets)
    street.finish()
    assert street.city.nodes["n1"].mesh.peers["n0"].link.restarts == 1
    street.city.run(1_000)
    street.say(PLAIN)
    street.finish()
    assert len(street.readers["n1", OLD].received) == 3
