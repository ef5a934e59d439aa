"""Clients for tests of logins: paho's, and a socket that speaks MQTT packet by packet."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from tests.support.waiting import wait_for

from nearcast.mqtt import Connect, Packet, PacketReader, encode_packet


def paho_login(
    port: int,
    client_id: str = "c1",
    user: str | None = None,
    password: str | None = None,
    *,
    tls: Callable[[paho.Client], None] = lambda _: None,
    v5: bool = True,
    source: str = "",
) -> tuple[int, paho.Client]:
    """Return the reason code of a paho client's login, and the client, which is connected if 0.

    `source` is the address that it connects from.
    """
    done, found = threading.Event(), []
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        protocol=paho.MQTTv5 if v5 else paho.MQTTv311,
        reconnect_on_failure=False,
    )

    def connected(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        found.append(reason.value)
        done.set()

    client.on_connect = connected
    client.on_connect_fail = lambda *_: done.set()
    client.on_disconnect = lambda *_: done.set()
    if user is not None:
        client.username_pw_set(user, password)
    tls(client)
    try:
        client.connect("127.0.0.1", port, 60, source)
    except OSError:
        return -1, client
    client.loop_start()
    assert done.wait(30)
    if not found or found[0]:
        client.loop_stop()
    return (found[0] if found else -1), client


def leave(client: paho.Client) -> None:
    """Disconnect a paho client."""
    client.disconnect()
    client.loop_stop()


def with_certificate(
    authority: Path, pair: tuple[Path, Path] | None = None
) -> Callable[[paho.Client], None]:
    """Return what makes a paho client use TLS."""

    def use(client: paho.Client) -> None:
        certificate, key = (None, None) if pair is None else map(str, pair[:2])
        client.tls_set(str(authority), certificate, key, tls_version=ssl.PROTOCOL_TLS_CLIENT)

    return use


class Raw:
    """A connection that sends and receives packets; the end is None."""

    def __init__(self, port: int, first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self._reader = PacketReader()
        self._packets: list[Packet] = []
        if first:
            self.socket.sendall(first)

    def send(self, *packets: Packet) -> None:
        for one in packets:
            self.socket.sendall(encode_packet(one))

    def next(self) -> Packet | None:
        while not self._packets:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._packets += self._reader.feed(data)
        return self._packets.pop(0)

    def login(self, client_id: str = "raw", **more: Any) -> int:
        """Return the reason code of a CONNECT; -1 if the connection just ends."""
        self.send(Connect(client_id, **more))
        answer = self.next()
        return -1 if answer is None else answer.reason  # type: ignore[union-attr]

    def close(self) -> None:
        self.socket.close()

    __del__ = close


def wait_until_closed(raw: Raw) -> Packet | None:
    """Return the last packet before the end."""
    last: list[Packet | None] = [None]

    def is_over() -> bool:
        packet = raw.next()
        if packet is None:
            return True
        last[0] = packet
        return False

    wait_for(is_over)
    return last[0]
