"""Frames and the opening request of WebSocket."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import PeerProtocolError
from nearcast.server.websocket import (
    FrameReader,
    WebSocketProtocol,
    answer_request,
    encode_frame,
    unmask,
)

REQUEST = (
    "GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqttv3.1, mqtt"
)


def masked(opcode: int, payload: bytes, first: int = 0x80) -> bytes:
    frame = encode_frame(opcode, payload)
    mask = os.urandom(4)
    head = frame[: len(frame) - len(payload)]
    return bytes((first | opcode, head[1] | 0x80)) + head[2:] + mask + unmask(payload, mask)


def test_a_good_request_is_answered_with_the_subprotocol() -> None:
    answer = answer_request(REQUEST.encode(), "/mqtt").decode()

    assert answer.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GET /mqtt", "POST /mqtt"),
        ("GET /mqtt", "GET /other"),
        ("WebSocket\r\n", "h2c\r\n"),
        ("Version: 13", "Version: 8"),
        ("mqttv3.1, mqtt", "chat"),
        ("dGhlIHNhbXBsZSBub25jZQ==", ""),
        ("GET /mqtt HTTP/1.1", "nonsense"),
    ],
)
def test_a_request_for_something_else_is_refused(old: str, new: str) -> None:
    with pytest.raises(PeerProtocolError):
        answer_request(REQUEST.replace(old, new).encode(), "/mqtt")


@given(
    st.lists(st.tuples(st.sampled_from([0, 2, 8, 9, 10]), st.binary(max_size=120)), max_size=5),
    st.integers(1, 40),
)
def test_frames_come_out_whole_in_any_portions(
    frames: list[tuple[int, bytes]], portion: int
) -> None:
    data = b"".join(masked(opcode, payload) for opcode, payload in frames)
    reader, found = FrameReader(1000), []
    for start in range(0, len(data), portion):
        found += reader.feed(data[start : start + portion])

    assert found == frames


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_all_length_forms(size: int) -> None:
    assert FrameReader(1 << 20).feed(masked(2, b"x" * size)) == [(2, b"x" * size)]


async def test_a_text_frame_closes_the_connection() -> None:
    """Text is no MQTT: the connection is given up; a ping is answered."""

    class Transport:
        def __init__(self) -> None:
            self.written = b""
            self.closed = False

        def write(self, data: bytes) -> None:
            self.written += data

        def is_closing(self) -> bool:
            return self.closed

        def close(self) -> None:
            self.closed = True

    protocol = WebSocketProtocol.__new__(WebSocketProtocol)
    transport = Transport()
    protocol._transport = transport  # type: ignore[assignment]
    protocol._is_open = True
    protocol._reader = FrameReader(1000)
    protocol._last_moment = None
    protocol._take_read(masked(9, b"are you there"))
    assert transport.written == encode_frame(10, b"are you there")
    await asyncio.sleep(0)
    assert not transport.is_closing()
    protocol._take_read(masked(1, b"text"))
    async with asyncio.timeout(60):
        while not transport.is_closing():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)


def test_large_unmasked_and_extended_frames_are_refused() -> None:
    for data in (masked(2, b"x" * 200), b"\x82\x05hello.", masked(2, b"x", first=0xC0)):
        with pytest.raises(PeerProtocolError):
            FrameReader(100).feed(data)
    with pytest.raises(PeerProtocolError):
        FrameReader(1000).feed(masked(9, b"x" * 126))
