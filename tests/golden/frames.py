"""Between nodes: frames, messages, messages about places, causal messages, a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any
from unittest import mock

import msgspec
from tests.golden.golden import Codec, Maker, as_hex, from_hex, hex_lines
from tests.golden.wire import SHOPS, offer
from tests.support.causal_accounts import account_of, numbers_in
from tests.support.simulated_city import SimulatedCity
from tests.support.town import town_plan

from nearcast.broker import SpaceSettings
from nearcast.broker.state import BrokerState
from nearcast.cluster import messages as m
from nearcast.cluster.filter_aggregation import FilterAggregation
from nearcast.cluster.links import Frame, FrameKind, decode_frame, encode_frame
from nearcast.cluster.peer_handshake import PeerTerms
from nearcast.locality.layout.rect import Rect
from nearcast.locality.registration.message_codec import decode_place_message, encode_place_message
from nearcast.locality.registration.messages import (
    CoverSpan,
    EventOffer,
    HolderMatch,
    Known,
    MatchTaken,
    PlacedEvent,
    Probe,
    Register,
)
from nearcast.model import Attribute, Space, read_subscription
from nearcast.mqtt import FilterRequest, Properties, ProtocolVersion, Publish
from nearcast.ordering import CausalMessage, DeltaCausal
from nearcast.papers.delta_causal import (
    KshemkalyaniSinghal,
    PrakashRaynalSinghal,
    RaynalSchiperToueg,
)
from nearcast.simulator.mqtt_node import FromNode, SimulatedClient, SimulatedNode

SPEAKS = m.SPEAKS
_MESSAGE = bytes.fromhex("00000000000000000100000000000000000500000000000003612f6268656c6c6f")
_KEPT = m.RetainedEntry("a/b", 1_700_000_000_000, "n1", _MESSAGE, 1_700_000_000_001)
_BID = m.TopKCandidate(1.5, 7, 300, "ann", "g", 12.25, True, 2.5)
_EVENT = PlacedEvent(("n1", 5 << 20), Rect(-1.0, -0.5, 0.25, 1.0), 1_000, 61_000, 1, _MESSAGE)
_SPANS = (
    CoverSpan(("1:q03", "1:outside"), Rect(0.0, 0.0, 1.0, 1.0), 1_000, None),
    CoverSpan(("*",), Rect(0.0, 0.0, 0.5, 0.5), 1_000, 2_000),
)


def _packed(*values: Any) -> bytes:
    """Return what a node wrote that knew fewer fields."""
    return msgspec.msgpack.encode(values)


TOLD = {
    "interest": m.Interest(7, [("a/+", 0), ("$share/g/b", 3)], ["c"], True, [("$share/g/b", 2)]),
    "interest known": m.InterestKnown(7),
    "retained": m.Retained([_KEPT, m.RetainedEntry("c", 5, "n2", None)], True),
    "plans used": m.PlansUsed(4, 5),
    "load report": m.LoadReport(4, {"q03": 120.5, "r1": 0.0}),
    "ordered": m.Ordered(9, "talk", b"control and payload"),
    "settled": m.Settled(9),
    "contest": m.TopKRequest(1_024, 3, "nearest", "bob", _MESSAGE),
    "bids": m.TopKReply(1_024, [_BID, m.TopKCandidate(0.0, 1, 2, "cat")]),
    "claim": m.ClaimSession(3, "ann", True, 1_700_000_000_000),
    "claimed": m.SessionClaimed(3, -2),
    "claimed and may move": m.SessionClaimed(3, 1_700_000_000_000, True),
    "claimed with a past": m.SessionClaimed(3, -1, False, [("talk", b"past")]),
    "fetch session": m.FetchSession(3, "ann"),
    "fetched session": m.FetchedSession(
        3,
        b"records",
        m.MovedPlaces({"$near/500m/city/#": 5}, [(7, 1.5, -2.5)], [(b"n1/9", 60_000)], {"n1": 9}),
        1_700_000_000_000,
    ),
    "draining": m.Draining(),
    "tunnel opened": m.TunnelOpened(4, b"\x10\x00", "Ann", "127.0.0.1:5"),
    "tunnel opened with rules": m.TunnelOpened(
        4, b"\x10\x00", "Ann", "127.0.0.1:5", b'[{"topic": "a/#"}]'
    ),
    "tunnel closed": m.TunnelClosed(4, False),
    "tunnel paused": m.TunnelPaused(4, True),
    "bridge here": m.BridgeHere("edge"),
    "client boxes told": m.ClientBoxesTold("shops", [((0.0, -1.5), (20.0, 1.5))]),
    "operator question": m.OperatorQuestion(5, b"asked"),
    "operator answer": m.OperatorAnswer(5, b"answer"),
}
_OLDER = {
    "interest without ready": (
        _packed("i", 7, [("a", 0)], [], False),
        m.Interest(7, [("a", 0)], []),
    ),
    "retained without last": (
        _packed("r", [("a", 5, "n1", b"x")]),
        m.Retained([m.RetainedEntry("a", 5, "n1", b"x")]),
    ),
    "bids without own": (
        _packed("b", 1, [(0.5, 1, 2, "a")]),
        m.TopKReply(1, [m.TopKCandidate(0.5, 1, 2, "a")]),
    ),
    "claimed without moves": (_packed("H", 3, 5), m.SessionClaimed(3, 5)),
    "claimed without pasts": (_packed("H", 3, 5, True), m.SessionClaimed(3, 5, True)),
    "claim without instant": (_packed("h", 3, "ann", False), m.ClaimSession(3, "ann", False)),
    "tunnel opened without rules": (
        _packed("t", 4, b"\x10\x00", None, "127.0.0.1:5"),
        m.TunnelOpened(4, b"\x10\x00", None, "127.0.0.1:5"),
    ),
    "settled with a later field": (_packed("s", 9, "later"), m.Settled(9)),
}
_GREETING = m.Greeting("n1", 1, 4, "00ff", "0123", 1_700_000_000_000, 100, True, "h:1883")


def _frames(parts: dict[str, tuple[FrameKind, int, int, int, bytes]]) -> dict[str, Frame]:
    return {name: Frame(*part) for name, part in parts.items()}


def causal_meaning(data: bytes) -> tuple[Any, ...]:
    """Return what a message of a causal group says of itself."""
    one = CausalMessage.decode(data)
    account = account_of(one)
    to, *others = [
        one.names[number] if one.names else number
        for number in (account.to, *numbers_in(account.destinations))
    ]
    return (
        one.sender, one.sent_us, to, sorted(map(str, others)),
        one.lifetime, sorted(one.waits), one.payload,
    )  # fmt: skip


CAUSAL_MEANING = {
    "first": ("n1", 10_000_000, "n3", ["n2", "n3"], None, [], b"who?"),
    "waits": ("n2", 10_020_000, "n3", ["n1", "n3"], 0.1, [("n1", 10_000_000)], b"me"),
    "third": ("n3", 10_040_000, "n1", ["n1"], None, [], b""),
    "numbered 0": (299, 5_020_000, 2, ["1", "2"], None, [(1, 5_000_000)], b"y"),
}


def causal_messages() -> dict[str, bytes]:
    """Return messages of causal groups; those named "numbered" end with their algorithm."""
    a, b, c = (DeltaCausal(name, 0.25, skew=0.01) for name in ("n1", "n2", "n3"))
    first = a.send({"n2", "n3"}, b"who?", 10.0)
    b.receive(first["n2"], 10.01)
    second = b.send({"n1", "n3"}, b"me", 10.02, lifetime=0.1)
    c.receive(first["n3"], 10.03)
    third = c.send({"n1"}, b"", 10.04)
    found = {"first": first["n3"], "waits": second["n3"], "third": third["n1"]}
    kinds = (DeltaCausal, RaynalSchiperToueg, PrakashRaynalSinghal, KshemkalyaniSinghal)
    for kind in kinds:
        one, two = (kind(number, 0.25) for number in (1, 299))
        two.receive(one.send({2, 299}, b"x", 5.0)[299], 5.01)
        found[f"numbered {kind.kind}"] = two.send({1, 2}, b"y", 5.02)[2]
    return {name: one.encode() for name, one in found.items()}


CODECS = {
    "frames/frames.hex": Codec(
        "frames: format, kind, token, token of the other side, number; content",
        _frames(
            {
                "hello": (FrameKind.HELLO, 1 << 63, 0, 0, b"greeting"),
                "hello, up": (FrameKind.HELLO, 5, 6, 1, b""),
                "data": (FrameKind.DATA, 5, 6, 1 << 40, b"parts"),
                "beat": (FrameKind.BEAT, 5, 6, 3, Struct("<qqq").pack(1_000, -2, -1)),
            }
        ),
        encode_frame,
        decode_frame,
    ),
    "frames/greeting.hex": Codec(
        "greetings, as versions 1 to 3 say them",
        {"version 4": _GREETING},
        m.encode,
        m.decode_greeting,
        {
            "version 1": (_packed("n1", 1, 1, "s", "g"), m.Greeting("n1", 1, 1, "s", "g")),
            "version 2": (
                _packed("n1", 1, 2, "s", "g", 9, 100),
                m.Greeting("n1", 1, 2, "s", "g", 9, 100),
            ),
        },
    ),
    "frames/messages.hex": Codec("messages between nodes", TOLD, m.encode, m.decode, _OLDER),
    "frames/places.hex": Codec(
        "messages about places: a code, then MessagePack with the names of fields",
        {
            "register": Register("n1", "ann/7", 3, _SPANS, 2),
            "offer": EventOffer("n1", _EVENT, 4, ("1:q03",)),
            "probe": Probe("n1", 2),
            "known": Known("n2", (1_000, 3), ("n1", 5), 4),
            "known, empty": Known("n2", (1_000, 3)),
            "match": HolderMatch("n2", _EVENT, 4, ("ann/7", "bob/8")),
            "matched": MatchTaken("n3", ("n1", 5 << 20), 4),
        },
        encode_place_message,
        decode_place_message,
    ),
}


def summaries() -> str:
    """Return what others are told of subscriptions with conditions: filters, how often."""
    boxes, lines = FilterAggregation([SHOPS], 0.25), []
    for text in ("price < 10", "price = 9..12", "kind = toys", "price > 90 and kind = food"):
        wish = read_subscription("shops/+", [("$where", text)]).subscription
        lines.append(f"{text}: {boxes.came(wish)}")
    lines += [f"tidy: {boxes.tidy()}", f"gone: {boxes.went(wish)}"]
    return "\n".join(lines) + "\n"


# --- a conversation of three nodes ---------------------------------------------------------------

_TALK = Space(name="talk", topic_filter="talk/#", attributes=(Attribute.number("x", 0, 9),))
SPACES = [
    SpaceSettings(space=SHOPS),
    SpaceSettings(space=_TALK, order="causal", lifetime_ms=400),
]
_SIZE = Struct("<I")


def parts_of(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a frame's content: kind (1), size (4), body."""
    at = 0
    while at < len(content):
        (size,) = _SIZE.unpack_from(content, at + 1)
        yield content[at : at + 1].decode(), content[at + 5 : at + 5 + size]
        at += 5 + size


@contextmanager
def overheard() -> Iterator[list[str]]:
    """Write down what nodes receive in the body: instant, way, frame, parts; and what they note."""
    lines: list[str] = []
    receive, set_note = SimulatedNode.receive, BrokerState.set_note

    def listen(node: SimulatedNode, message: FromNode, now: int) -> Any:
        frame = decode_frame(message.data)
        kind, *numbers, content = frame
        told = f"{now} {message.sender}>{node.name} frame {int(kind)} {numbers}"
        if kind is FrameKind.DATA:
            lines.append(told)
            lines.extend(f"  {part} {as_hex(body)}" for part, body in parts_of(content))
        else:
            lines.append(f"{told} {as_hex(content)}")
        return receive(node, message, now)

    def note(state: BrokerState, key: bytes, value: bytes, until_ms: int) -> None:
        lines.append(f"note {as_hex(key)}: {until_ms} {as_hex(value)}")
        set_note(state, key, value, until_ms)

    with (
        mock.patch.object(SimulatedNode, receive.__name__, listen),
        mock.patch.object(BrokerState, set_note.__name__, note),
    ):
        yield lines


def _publish(
    city: SimulatedCity, client: SimulatedClient, topic: str, payload: bytes, **rest: Any
) -> None:
    client.publish(Publish(topic, payload, **rest))
    city.turn(client)
    city.run(10)


def _best() -> Properties:
    return Properties(user_properties=(("$top", "1"), ("$rank", "nearest")))


def scene(lines: list[str]) -> SimulatedCity:
    """Let three nodes say all kinds of things to each other; `lines` gets headings."""
    city = SimulatedCity(3, seed=5, spaces=SPACES)
    lines.append("# a client subscribes: plain, shared, with conditions, near it, in causal order")
    ann = city.client("ann", "n0", "a/+", "$share/g/b", "talk/#")
    ann.ask(FilterRequest("$where/price=1..9/shops/#", 1))
    city.publish(ann, "$position", b'{"lon": 0.1, "lat": 0.1}', 1)
    ann.subscribe("$near/20km/shops/#")
    city.turn(ann)
    city.run(20)
    bob = city.client("bob", "n1", "talk/#")
    old = city.client("old", "n1", version=ProtocolVersion.V311)
    city.run(20)
    lines.append("# publications: of 3.1.1, QoS 2, retained, shared, near, the best, causal")
    _publish(city, old, "a/1", b"as it is")
    _publish(city, bob, "a/1", b"twice", qos=2)
    _publish(city, bob, "a/2", b"kept", qos=1, retain=True)
    _publish(city, bob, "b", b"shared", qos=1)
    _publish(city, bob, "shops/1", offer(0.1, 50), qos=1)
    _publish(city, bob, "shops/2", offer(0.12, 50), qos=1, properties=_best())
    _publish(city, bob, "talk/1", b'{"x": 1}', qos=1)
    lines.append("# a plan")
    plan = town_plan(city.names, 1, 1)
    for name in city.names:
        city.at(name, lambda node, now: node.use_plan(plan, now))
    city.run(20)
    city.publish(ann, "$position", b'{"lon": -0.4, "lat": -0.4}', 1)
    city.run(20)
    _publish(city, bob, "shops/3", offer(-0.4, 50), qos=1)
    lines.append("# a client comes to another node, and goes")
    city.at("n0", lambda node, now: node.drop(ann, now))
    city.admit(ann, "n2")
    city.run(20)
    _publish(city, ann, "a/3", b"through a tunnel", qos=1)
    city.at("n2", lambda node, now: node.drop(ann, now))
    city.run(500)
    return city


def conversation() -> str:
    """Return all frames of the scene, and what its nodes note in their journals."""
    with overheard() as lines:
        scene(lines)
    return "\n".join(lines) + "\n"


def versions() -> str:
    """Return what a node sends of a 3.1.1 publication to a node of each version that it speaks."""
    found = []
    for version in range(SPEAKS[0], SPEAKS[1] + 1):
        speaks = staticmethod(lambda _greeting, version=version: version)
        with (
            mock.patch.object(PeerTerms, PeerTerms.version_with.__name__, speaks),
            overheard() as lines,
        ):
            city = SimulatedCity(2, seed=3)
            reader = city.client("reader", "n0", "t/+")
            writer = city.client("writer", "n1", version=ProtocolVersion.V311)
            city.run(50)
            lines.clear()
            _publish(city, writer, "t/1", b"hello")
            _publish(city, writer, "t/1", b"kept", retain=True)
            assert [one.payload for one in reader.received] == [b"hello", b"kept"]
            found += [f"# version {version}", *lines]
    return "\n".join(found) + "\n"


def parts_in(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield the parts that a conversation has written down."""
    for line in text.splitlines():
        if line.startswith("  "):
            kind, _, told = line.strip().partition(" ")
            yield kind, from_hex(told)


def notes_in(text: str) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield key, end and value of the notes that a conversation has written down."""
    for line in text.splitlines():
        if line.startswith("note "):
            key, _, told = line.removeprefix("note ").partition(": ")
            until_ms, _, value = told.partition(" ")
            yield from_hex(key), int(until_ms), from_hex(value)


CAUSAL, CONVERSATION = "frames/causal.hex", "frames/conversation.txt"
FILES: dict[str, Maker] = {
    **{name: codec.text for name, codec in CODECS.items()},
    CAUSAL: lambda: hex_lines(
        "messages of causal groups, the last of them by the algorithms that ours is compared with",
        causal_messages(),
    ),
    "frames/summaries.txt": summaries,
    CONVERSATION: conversation,
    "frames/versions.txt": versions,
}
