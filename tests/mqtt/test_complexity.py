"""Whatever a stranger can send is read in linear time, also before login.

Four times the input may take about four times the time; quadratic work would take sixteen times.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock, patch

import pytest

from nearcast.broker import Broker, Connection
from nearcast.model import MisuseError, Polygon, parse_shape, parse_where, split_prefixes
from nearcast.model.errors import LimitError, PeerProtocolError
from nearcast.model.event_decoder import read_json, read_position
from nearcast.model.requests import SELECTING, decoded
from nearcast.mqtt import (
    Connect,
    FilterRequest,
    MqttProtocolError,
    PacketReader,
    PacketType,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    check_topic_filter,
    check_topic_name,
    decode_packet,
    encode_packet,
)
from nearcast.mqtt.properties import UNLIMITED, encode_properties, read_properties
from nearcast.server.auth.scram import ScramError, read_first
from nearcast.server.auth.tokens import _TOKEN
from nearcast.server.clock import Clock
from nearcast.server.http.protocol import HttpProtocol
from nearcast.server.listeners.proxy_header import read_header
from nearcast.server.listeners.websocket import (
    RefusedRequestError,
    WebSocketProtocol,
    answer_request,
)

STEP, ALLOWED = 4, 9.0
Work = Callable[[], object]
REFUSALS = (MisuseError, MqttProtocolError, PeerProtocolError, RefusedRequestError, ScramError)


def _seconds(work: Work, times: int) -> float:
    best = 1e9
    for _ in range(times):
        started = time.thread_time()
        with contextlib.suppress(*REFUSALS):
            work()  # a refusal is an answer, and must be quick as well
        best = min(best, time.thread_time() - started)
    return best


def _many(count: int) -> Properties:
    return Properties(user_properties=tuple((f"n{n}", "value") for n in range(count)))


def _body(packet: Connect | Subscribe | Unsubscribe | Publish) -> tuple[int, bytes]:
    raw = encode_packet(packet)
    at = 2
    while raw[at - 1] & 0x80:
        at += 1
    return raw[0], raw[at:]


def _user_properties(count: int) -> Work:
    data = encode_properties(_many(count))
    return lambda: read_properties(data, 0, len(data), PacketType.CONNECT, UNLIMITED)


def _subscription_identifiers(count: int) -> Work:
    data = encode_properties(Properties(subscription_identifiers=tuple(range(1, count + 1))))
    return lambda: read_properties(data, 0, len(data), PacketType.PUBLISH, UNLIMITED)


def _connect(count: int) -> Work:
    first, body = _body(Connect("c", properties=_many(count)))
    return lambda: decode_packet(first, body)


def _connect_in_pieces(count: int) -> Work:
    raw = encode_packet(Connect("c" * 60_000, properties=_many(900)))[: count * 100]
    pieces = [raw[at : at + 4] for at in range(0, len(raw), 4)]

    def work() -> None:
        node, link = Broker(), Connection()
        node.open(link, 1)
        for piece in pieces:
            node.receive(link, piece, 1)

    return work


def _stream_in_pieces(count: int) -> Work:
    raw = encode_packet(Publish("t", b"x" * 40 * count))
    pieces = [raw[at : at + 10] for at in range(0, len(raw), 10)]

    def work() -> None:
        reader = PacketReader()
        for piece in pieces:
            reader.feed(piece)

    return work


def _subscribe(count: int) -> Work:
    first, body = _body(Subscribe(1, tuple(FilterRequest(f"a/{n}") for n in range(count))))
    return lambda: decode_packet(first, body)


def _unsubscribe(count: int) -> Work:
    first, body = _body(Unsubscribe(1, tuple(f"a/{n}" for n in range(count))))
    return lambda: decode_packet(first, body)


def _publish(count: int) -> Work:
    packet = encode_packet(Publish("t", b"", properties=_many(count)))
    connect = encode_packet(Connect("c"))

    def work() -> None:
        node, link = Broker(), Connection()
        node.open(link, 1)
        node.receive(link, connect + packet, 1)

    return work


def _headers(count: int) -> Work:
    request = _REQUEST + b"".join(b"\r\nX-%d: y" % n for n in range(count))
    return lambda: answer_request(request, "/mqtt")


def _one_header_again(count: int) -> Work:
    request = _REQUEST + b"\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy" * count
    return lambda: answer_request(request, "/mqtt")


def _long_header(count: int) -> Work:
    request = _REQUEST.replace(b"mqtt", b"mqtt" + b", x" * count).replace(b"keep-", b"a," * count)
    return lambda: answer_request(request, "/mqtt")


class _Turns:
    """Does at once what the turns of a loop would do in slices."""

    def __init__(self) -> None:
        self.node, self.clock = Broker(), Clock()

    def work(self, work: Iterator[None]) -> None:
        deque(work, maxlen=0)

    def take(self, connection: Connection, data: bytes) -> None:
        self.node.receive(connection, data, 1)

    read = take

    def schedule(self) -> None:
        """Nothing is written."""

    def hold_reading(self, _connection: Connection) -> None:
        """Others would be served."""

    look_after = read_on = hold_reading
    message_rates = None


def _reads(*reads: bytes) -> Work:
    """Return what lets a WebSocket take these reads one after the other."""

    def work() -> None:
        protocol = WebSocketProtocol(_Turns(), "0", "/mqtt")  # type: ignore[arg-type]
        protocol._turns.node.open(protocol._connection, 1)
        for data in reads:
            protocol.data_received(data)

    return work


def _request_in_pieces(count: int) -> Work:
    whole = _REQUEST + b"\r\nX: " + b"y" * count
    return _reads(*(whole[at : at + 1] for at in range(len(whole))))


def _frames_in_pieces(count: int) -> Work:
    whole = b"\x82\xfe%b\0\0\0\0" % (50_000).to_bytes(2, "big") + b"\x30\xff\xff\x7f" * count
    return _reads(_REQUEST + b"\r\n\r\n", *(whole[at : at + 1] for at in range(len(whole))))


def _read_of_frames(count: int) -> Work:
    return _reads(_REQUEST + b"\r\n\r\n", b"\x89\x80\0\0\0\0" * count)


def _http_in_pieces(count: int) -> Work:
    """Return what takes a request with a chunked body, in portions of one byte."""
    head = b"POST /api/v1/publish HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + b"1\r\nx\r\n" * count

    def work() -> None:
        protocol = HttpProtocol(MagicMock())
        protocol._is_first = False
        with patch.object(protocol, "_set_alarm"), patch.object(protocol, "_send"):
            for at in range(len(whole)):
                protocol.data_received(whole[at : at + 1])

    return work


def _polygon(*rings: list[tuple[float, float]]) -> Work:
    text = json.dumps({"type": "Polygon", "coordinates": rings}, separators=(",", ":"))
    parse_shape('{"type":"Polygon","coordinates":[[[0,0],[1,0],[1,1],[0,0]]]}')  # loads Shapely
    return lambda: parse_shape(text)


def _round(count: int) -> Work:
    turns = [2 * math.pi * n / count for n in range(count)]
    ring = [(round(40 * math.cos(one), 4), round(40 * math.sin(one), 4)) for one in turns]
    return _polygon([*ring, ring[0]])


def _comb(count: int) -> Work:
    """Return a polygon of long edges, one above the other."""
    turns = [(n // 2 * 0.01, (0, 60, 60, 0)[n % 4]) for n in range(count // 4 * 4)]
    ring = [(float(lon), round(lat, 2)) for lat, lon in turns]
    return _polygon([*ring, (-1.0, ring[-1][1]), (-1.0, 0.0), ring[0]])


def _holes(count: int) -> Work:
    outline = [(-1.0, -1.0), (60.0, -1.0), (60.0, 60.0), (-1.0, 60.0), (-1.0, -1.0)]
    corners = [(n % 50, n // 50) for n in range(count)]
    holes = [[(x, y), (x, y + 0.5), (x + 0.5, y), (x, y)] for x, y in corners]
    return _polygon(outline, *holes)


def _side_by_side(count: int) -> Work:
    """Return a polygon of long slanting edges, of which each lies in the boxes of all others."""
    up = [((0.001 * n, -0.001 * n), (60 + 0.001 * n, 60 - 0.001 * n)) for n in range(count)]
    ring = [one for n, pair in enumerate(up) for one in (pair if n % 2 == 0 else pair[::-1])]
    ring += [(-20.0, -60.0), (-20.0, -1.0), ring[0]]
    return lambda: Polygon(((tuple(ring),),))


_REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt"
)
_PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"
CASES: dict[str, tuple[int, Callable[[int], Work]]] = {
    "user properties": (4_000, _user_properties),
    "subscription identifiers": (10_000, _subscription_identifiers),
    "CONNECT": (4_000, _connect),
    "CONNECT in pieces": (150, _connect_in_pieces),
    "a packet in pieces": (2_000, _stream_in_pieces),
    "SUBSCRIBE": (4_000, _subscribe),
    "UNSUBSCRIBE": (4_000, _unsubscribe),
    "PUBLISH": (4_000, _publish),
    "topic name": (200_000, lambda n: lambda: check_topic_name("a/" * n, printable=True)),
    "topic filter": (20_000, lambda n: lambda: check_topic_filter("+/" * n, printable=True)),
    "prefixes": (4_000, lambda n: lambda: split_prefixes("$near/1m/" * n + "a", SELECTING)),
    "values of prefixes": (20_000, lambda n: lambda: decoded([("$where", "%41b" * n)])),
    "$where, or": (500, lambda n: lambda: parse_where(" or ".join(["price < 5"] * n))),
    "$where, in": (500, lambda n: lambda: parse_where(f"kind in ({', '.join('abc' * n)})")),
    "$where, brackets": (5_000, lambda n: lambda: parse_where("(" * n)),
    "$where, not": (5_000, lambda n: lambda: parse_where("not " * n + "a < 1")),
    "$where, a word": (50_000, lambda n: lambda: parse_where("x" * n)),
    "$where, blanks": (50_000, lambda n: lambda: parse_where(" " * n)),
    "$where, text": (50_000, lambda n: lambda: parse_where("a = '" + "\\\\" * n)),
    "$area, brackets": (20_000, lambda n: lambda: parse_shape("(" * n)),
    "$area, blanks": (20_000, lambda n: lambda: parse_shape("circle(" + " " * n)),
    "$area, digits": (20_000, lambda n: lambda: parse_shape("circle(" + "1" * n)),
    "$area, GeoJSON": (2_000, lambda n: lambda: parse_shape("geojson([" + "[8,47]," * n + "])")),
    "$area, a round polygon": (500, _round),
    "$area, a comb": (500, _comb),
    "$area, holes": (300, _holes),
    "$area, edges side by side": (2_000, _side_by_side),
    "JSON, depth": (20_000, lambda n: lambda: read_json(b"[" * n)),
    "JSON, numbers": (20_000, lambda n: lambda: read_json(b"[" + b"1.5," * n + b"1]")),
    "JSON, one number": (50_000, lambda n: lambda: read_json(b"0." + b"1" * n)),
    "JSON, text": (50_000, lambda n: lambda: read_json(b'"' + b"\\u00e9" * n + b'"')),
    "WebSocket, headers": (4_000, _headers),
    "WebSocket, a header again": (4_000, _one_header_again),
    "WebSocket, a long header": (20_000, _long_header),
    "WebSocket, a request in pieces": (1_900, _request_in_pieces),
    "WebSocket, a frame in pieces": (2_000, _frames_in_pieces),
    "WebSocket, a long read": (20_000, _read_of_frames),
    "PROXY header, version 1": (20_000, lambda n: lambda: read_header(b"PROXY TCP4 " + b"1" * n)),
    "PROXY header, version 2": (20_000, lambda n: lambda: read_header(_PROXY_2 + b"\0" * n)),
    "SCRAM, a long name": (20_000, lambda n: lambda: read_first(b"n,,n=" + b"=2C" * n + b",r=x")),
    "JSON Web Token, its form": (20_000, lambda n: lambda: _TOKEN.fullmatch(b"ab." * n)),
    "JSON Web Token, no form": (20_000, lambda n: lambda: _TOKEN.fullmatch(b"a-" * n + b"!")),
    "HTTP, a body in pieces": (1_000, _http_in_pieces),
    "position": (20_000, lambda n: lambda: read_position(b"", (("a", "b"),) * n)),
}


OWN_TURNS = [
    f"WebSocket, a {what}" for what in ("request in pieces", "frame in pieces", "long read")
]
"""They use `_Turns`, which compiled protocols do not take for turns of a loop."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.plain) if name in OWN_TURNS else name for name in CASES],
)
def test_four_times_the_input_takes_about_four_times_the_time(name: str) -> None:
    size, make = CASES[name]
    small, large = make(size), make(size * STEP)
    ratios: list[float] = []
    for times in (1, 4, 4, 4):  # others use the machine as well
        ratios.append(_seconds(large, times) / max(_seconds(small, 4), 20e-6))
        if ratios[-1] <= ALLOWED:
            return
    pytest.fail(f"{name}: {', '.join(f'{one:.1f}' for one in ratios)} times the time")


@pytest.mark.parametrize("name", ["$area, a round polygon", "$area, a comb", "$area, holes"])
def test_these_polygons_are_taken(name: str) -> None:
    size, make = CASES[name]
    assert make(size * STEP)()


@pytest.mark.parametrize(("count", "is_taken"), [(980, True), (1_020, False)])
def test_edges_side_by_side_are_refused_before_shapely_compares_all(
    count: int, is_taken: bool
) -> None:
    work = _side_by_side(count)
    if is_taken:
        assert work()
    else:
        with pytest.raises(LimitError, match="pairs of edges side by side"):
            work()
