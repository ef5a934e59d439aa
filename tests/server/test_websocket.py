"""The opening request of WebSocket, and a client's frames: what RFC 6455 forbids is refused.

The cases are those of Autobahn's test suite that concern a server of binary messages: framing (1),
pings (2), reserved bits (3), reserved types (4), fragments (5), closing (7), large frames (9).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.server.listeners.websocket import RefusedRequestError, answer_request
from nearcast.server.listeners.websocket_frames import FrameDecoder, encode_frame, unmask

REQUEST = (
    "GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqttv3.1, mqtt"
)
CONNECT = b"\x10\x0d\0\4MQTT\4\2\0\0\0\1w"
CONNACK = b"\x20\x02\0\0"
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"


def masked(opcode: int, payload: bytes, *, first: int = 0x80) -> bytes:
    """Return a client's frame."""
    frame = encode_frame(opcode, payload)
    mask = os.urandom(4)
    head = frame[: len(frame) - len(payload)]
    return bytes((first | opcode, head[1] | 0x80)) + head[2:] + mask + unmask(payload, mask)


def closing(code: int, reason: bytes = b"") -> bytes:
    return masked(8, code.to_bytes(2, "big") + reason)


def test_a_good_request_is_answered_with_the_subprotocol() -> None:
    answer = answer_request(REQUEST.encode(), "/mqtt").decode()

    assert answer.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("GET /mqtt", "POST /mqtt", 400),
        ("GET /mqtt", "GET /other", 404),
        ("GET /mqtt HTTP/1.1", "GET /mqtt HTTP/1.0", 400),
        ("GET /mqtt HTTP/1.1", "nonsense", 400),
        ("Upgrade: WebSocket\r\n", "", 426),
        ("WebSocket\r\n", "h2c\r\n", 426),
        ("Connection: keep-alive, Upgrade\r\n", "", 400),
        ("keep-alive, Upgrade", "keep-alive", 400),
        ("Host: x\r\n", "", 400),
        ("Host: x\r\n", "Host: x\r\nHost: y\r\n", 400),
        ("Host: x\r\n", "Host: x\r\nno colon\r\n", 400),
        ("Version: 13", "Version: 8", 426),
        ("mqttv3.1, mqtt", "chat", 400),
        ("\r\nSec-WebSocket-Protocol: mqttv3.1, mqtt", "", 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "", 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhl", 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j*Q==", 400),
    ],
)
def test_a_request_for_something_else_is_refused(old: str, new: str, status: int) -> None:
    with pytest.raises(RefusedRequestError) as caught:
        answer_request(REQUEST.replace(old, new).encode(), "/mqtt")

    assert caught.value.status.startswith(str(status))


def fed(*frames: bytes) -> tuple[FrameDecoder, bytes]:
    decoder = FrameDecoder()
    return decoder, b"".join(piece for data in frames for piece in decoder.feed(data))


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=3000)), max_size=5),
    st.integers(1, 400),
    st.binary(max_size=125),
)
def test_the_stream_comes_out_of_frames_in_any_portions(
    messages: list[tuple[bool, bytes]], portion: int, ping: bytes
) -> None:
    """Messages whole or in three fragments with a ping between, cut anywhere."""
    data = b""
    for is_cut, payload in messages:
        third = len(payload) // 3
        if is_cut:
            data += masked(2, payload[:third], first=0) + masked(9, ping)
            data += masked(0, payload[third : 2 * third], first=0) + masked(0, payload[2 * third :])
        else:
            data += masked(2, payload)
    decoder, stream = fed(*(data[at : at + portion] for at in range(0, len(data), portion)))

    assert stream == b"".join(payload for _, payload in messages)
    assert decoder.closing == 0
    assert decoder.pong == (ping if any(is_cut for is_cut, _ in messages) else None)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_all_length_forms(size: int) -> None:
    payload = os.urandom(size)

    assert fed(masked(2, payload))[1] == payload


def test_half_a_frame_is_handed_on_and_not_kept() -> None:
    frame = masked(2, b"x" * 1_000_000)
    decoder, stream = fed(frame[:500_000])

    assert stream == b"x" * (500_000 - 14)
    kept = sum(len(getattr(decoder, slot)) for slot in ("_head", "_mask", "_control"))
    assert kept <= 139


FORBIDDEN = {
    "an unmasked frame": (encode_frame(2, PINGREQ), 1002),
    "an unmasked empty frame": (b"\x82\x00", 1002),
    "the first reserved bit": (masked(2, PINGREQ, first=0xC0), 1002),
    "the second reserved bit": (masked(2, PINGREQ, first=0xA0), 1002),
    "the third reserved bit": (masked(2, PINGREQ, first=0x90), 1002),
    "a reserved bit in a ping": (masked(9, b"", first=0xC0), 1002),
    "a reserved data type": (masked(3, b""), 1002),
    "another reserved data type": (masked(7, b"x"), 1002),
    "a reserved control type": (masked(11, b""), 1002),
    "another reserved control type": (masked(15, b"x"), 1002),
    "a text frame": (masked(1, b"text"), 1003),
    "a text frame in fragments": (masked(1, b"text", first=0), 1003),
    "a stray continuation": (masked(0, PINGREQ), 1002),
    "a stray unfinished continuation": (masked(0, PINGREQ, first=0), 1002),
    "a continuation after the end": (
        masked(2, b"\xc0", first=0) + masked(0, b"\0") + masked(0, b"x"),
        1002,
    ),
    "interleaved messages": (masked(2, b"\xc0", first=0) + masked(2, b"\0"), 1002),
    "interleaved short messages": (masked(2, b"", first=0) + masked(2, PINGREQ), 1002),
    "a ping in fragments": (masked(9, b"", first=0), 1002),
    "a pong in fragments": (masked(10, b"", first=0), 1002),
    "a close in fragments": (masked(8, b"", first=0), 1002),
    "a ping of 126 bytes": (masked(9, b"x" * 126), 1002),
    "a close of 126 bytes": (masked(8, b"\x03\xe8" + b"x" * 124), 1002),
    "two bytes for a length of 125": (
        b"\x82\xfe\0\x7d" + bytes(4) + b"x" * 125,
        1002,
    ),
    "eight bytes for a length of 65535": (
        b"\x82\xff" + struct.pack(">Q", 65_535) + bytes(4),
        1002,
    ),
    "a length of 64 bits": (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1002),
    "a close of one byte": (masked(8, b"\x03"), 1002),
    "a close with bad UTF-8": (closing(1000, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80"), 1002),
    **{
        f"close code {code}": (closing(code), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535)
    },
}
ALLOWED_CODES = (*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999)


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("portion", [1, 1 << 20])
def test_what_no_client_may_send_closes(name: str, portion: int) -> None:
    data, code = FORBIDDEN[name]
    decoder, _ = fed(*(data[at : at + portion] for at in range(0, len(data), portion)))

    assert decoder.closing == code
    assert decoder.problem
    assert decoder.feed(masked(2, PINGREQ)) == [], "nothing is taken after that"


@pytest.mark.parametrize("code", ALLOWED_CODES)
def test_a_clients_own_close_code_comes_back(code: int) -> None:
    decoder, _ = fed(closing(code, "good bye, größte".encode()))

    assert (decoder.closing, decoder.problem) == (code, "")


def test_a_close_without_a_code_is_normal() -> None:
    assert fed(masked(8, b""))[0].closing == 1000


def test_many_segments_of_one_byte_cost_no_more_than_their_bytes() -> None:
    """One-byte segments of a frame of 200 kB must not cost its size each time."""
    frame = masked(2, bytes(200_000))
    pieces = [frame[at : at + 1] for at in range(len(frame))]
    decoder = FrameDecoder()
    began = time.process_time()
    for piece in pieces:
        decoder.feed(piece)

    assert (time.process_time() - began) / len(pieces) < 50e-6


# --- over sockets -------------------------------------------------------------------------


class Client:
    """A raw WebSocket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._read = b""

    def open(self) -> Client:
        self.send(REQUEST.encode() + b"\r\n\r\n")
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        return self

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _more(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError
        self._read += data

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield opcode and payload of short frames until the broker ends."""
        while True:
            while len(self._read) < 2 or len(self._read) < 2 + self._read[1]:
                try:
                    self._more()
                except EOFError:
                    return
            size = self._read[1]
            assert size < 126
            frame, self._read = self._read[: 2 + size], self._read[2 + size :]
            yield frame[0] & 0x0F, frame[2:]

    def rest(self) -> bytes:
        while True:
            try:
                self._more()
            except EOFError:
                return self._read

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def client(all_listeners: Any) -> Iterator[Client]:
    one = Client(all_listeners.ports["ws"])
    yield one
    one.close()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_broker_closes_with_the_code_and_serves_others(client: Client, name: str) -> None:
    data, code = FORBIDDEN[name]
    client.open().send(masked(2, CONNECT) + data)
    frames = list(client.frames())

    assert frames[-1] == (8, code.to_bytes(2, "big"))


def test_a_stream_in_fragments_with_pings_between_is_mqtt(client: Client) -> None:
    client.open()
    for byte in CONNECT + PINGREQ:
        client.send(masked(2, bytes((byte,)), first=0) + masked(9, b"p") + masked(0, b""))
    got = b"".join(payload for _, payload in _until(client, PINGRESP))

    assert got.replace(b"p", b"") == CONNACK + PINGRESP


def _until(client: Client, last: bytes) -> Iterator[tuple[int, bytes]]:
    for opcode, payload in client.frames():
        yield opcode, payload
        if opcode == 2 and payload.endswith(last):
            return


def test_a_ping_is_answered_before_and_after_connect(client: Client) -> None:
    client.open().send(masked(9, b"before"))
    frames = client.frames()
    assert next(frames) == (10, b"before")
    client.send(masked(2, CONNECT))
    assert next(frames) == (2, CONNACK)
    client.send(masked(9, b"after"))
    assert next(frames) == (10, b"after")


def test_a_close_is_answered_with_its_code_and_the_broker_ends(client: Client) -> None:
    client.open().send(masked(2, CONNECT) + closing(4001, b"enough"))

    assert list(client.frames())[-1] == (8, (4001).to_bytes(2, "big"))


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("Connection: keep-alive, Upgrade\r\n", "", b"400"),
        ("mqttv3.1, mqtt", "chat", b"400"),
        ("GET /mqtt", "GET /other", b"404"),
        ("Version: 13", "Version: 8", b"426"),
    ],
)
def test_a_bad_request_hears_why(client: Client, old: str, new: str, status: bytes) -> None:
    client.send(REQUEST.replace(old, new).encode() + b"\r\n\r\n")

    answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 " + status)
    if status == b"426":
        assert b"\r\nSec-WebSocket-Version: 13\r\n" in answer


def test_an_endless_request_ends(client: Client) -> None:
    client.send(b"GET /mqtt HTTP/1.1\r\n" + b"x" * 9_000)

    assert client.rest().startswith(b"HTTP/1.1 400")


def test_a_will_is_published_when_frames_make_no_sense(all_listeners: Any, client: Client) -> None:
    """For MQTT the connection is gone at once, though its socket waits for the client's end."""
    watcher = Client(all_listeners.ports["ws"]).open()
    watcher.send(masked(2, CONNECT[:-1] + b"v") + masked(2, b"\x82\x06\0\1\0\1t\0"))
    suback = b"\x90\x03\0\1\0"
    assert b"".join(payload for _, payload in _until(watcher, suback)) == CONNACK + suback
    with_will = b"\x10\x13\0\4MQTT\4\x06\0\0\0\1u\0\1t\0\1w"
    client.open().send(masked(2, with_will) + masked(1, b"text"))

    assert next(watcher.frames()) == (2, b"\x30\x04\0\1tw")
    watcher.close()


@pytest.mark.parametrize(("size", "is_taken"), [(8_192, True), (8_193, False), (8_300, False)])
def test_a_request_may_have_eight_kilobytes(all_listeners: Any, size: int, is_taken: bool) -> None:
    request = REQUEST + "\r\nX: "
    request += "y" * (size - len(request))
    with socket.create_connection(("127.0.0.1", all_listeners.ports["ws"]), timeout=30) as client:
        client.sendall(request.encode() + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 101" if is_taken else b"HTTP/1.1 400")
