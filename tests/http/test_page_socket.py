"""The page's connection: what comes close together is one frame, whole and in order."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable

import pytest
from tests.http.conftest import ManagedBroker, Mover
from tests.support.waiting import wait_for

from nearcast.mqtt import Connect, FilterRequest, Subscribe
from nearcast.mqtt.encode import encode_packet

pytestmark = pytest.mark.server
EVENTS, APART_S = 200, 0.005
MOST_FRAMES = 30  # ten a second, on a machine that is busy, too
UPGRADE = (
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\nAuthorization: Bearer {token}\r\n\r\n"
)


class RawPage:
    """A WebSocket client that keeps the frames as they came, each with when it came."""

    def __init__(self, site: ManagedBroker) -> None:
        self.frames: list[tuple[float, bytes]] = []
        self._socket = socket.create_connection(("127.0.0.1", site.port), 10)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(UPGRADE.format(token=site.token).encode())
        while self._file.readline() != b"\r\n":
            pass
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def send(self, packet: Connect | Subscribe) -> None:
        data = encode_packet(packet)
        self._socket.sendall(bytes((0x82, 0x80 | len(data))) + bytes(4) + data)

    def _read(self) -> None:
        while head := self._file.read(2):
            size = head[1]
            if size == 126:
                size = int.from_bytes(self._file.read(2), "big")
            elif size == 127:
                size = int.from_bytes(self._file.read(8), "big")
            self.frames.append((time.monotonic(), self._file.read(size)))

    def numbers(self) -> list[int]:
        """Return the numbers of the events that have come."""
        whole = b"".join(data for _, data in list(self.frames))
        return [int(one) for one in re.findall(rb"number (\d+);", whole)]

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._file.close()
        self._socket.close()


def test_many_events_are_few_frames_and_the_first_comes_at_once(
    site: ManagedBroker, mover: Callable[..., Mover]
):
    baker = mover("baker")
    page = RawPage(site)
    try:
        page.send(Connect("page-frames"))
        page.send(Subscribe(1, (FilterRequest("frames/#"),)))
        wait_for(lambda: any(b"\x90" in data for _, data in page.frames))  # SUBACK
        time.sleep(0.3)  # the pause behind it
        before = len(page.frames)
        for number in range(EVENTS):
            baker.client.publish("frames/1", f"number {number};")
            time.sleep(APART_S)
        wait_for(lambda: len(page.numbers()) >= EVENTS)
        assert page.numbers() == list(range(EVENTS))
        came = page.frames[before:]
        assert re.findall(rb"number (\d+);", came[0][1]) == [b"0"]
        assert len(came) < MOST_FRAMES
    finally:
        page.end()


def test_what_was_collected_comes_before_the_end(start_site: Callable[..., ManagedBroker]):
    site = start_site()
    baker = Mover(site.broker.port, "baker").connect()
    page = RawPage(site)
    try:
        page.send(Connect("page-end"))
        page.send(Subscribe(1, (FilterRequest("frames/#"),)))
        wait_for(lambda: any(b"\x90" in data for _, data in page.frames))
        for number in range(20):
            baker.client.publish("frames/1", f"number {number};", qos=1)
        wait_for(lambda: site.program().get("/api/overview").json["received"] >= 20)
        site.program().ask("POST", "/api/clients/page-end/disconnect", {})
        wait_for(lambda: len(page.numbers()) == 20)
    finally:
        page.end()
        baker.end()
