"""What a broker measures of itself, and where it shows it."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from nearcast.broker import Broker
from nearcast.config import Configuration, LogSection
from nearcast.mqtt import Connect, FilterRequest, Publish, Subscribe, encode_packet
from nearcast.server.local_cluster import free_port
from nearcast.server.metrics.declared import MetricSource
from nearcast.server.metrics.exposition import server_text
from nearcast.server.metrics.measurements import BOUNDS_S, LatencyHistogram, LoopDelay


def buckets(text: str, name: str) -> dict[str, int]:
    found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\d+)$', text, re.MULTILINE)
    return {bound: int(count) for bound, count in found}


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = LatencyHistogram()
    histogram.add(0.0001)
    histogram.add(0.003, 5)
    histogram.add(100.0)
    text = "\n".join(histogram.lines("x"))
    found = buckets(text, "x")

    assert len(found) == len(BOUNDS_S) + 1
    assert (found["0.0001"], found["0.0025"], found["0.005"]) == (1, 1, 6)
    assert (found["10.0"], found["+Inf"]) == (6, 7)
    assert "\nx_sum 100.015100\nx_count 7" in text


async def test_a_loop_that_is_held_up_is_measured() -> None:
    delay = LoopDelay()
    delay.start()
    time.sleep(0.4)  # noqa: ASYNC251 - this is what it is to find
    async with asyncio.timeout(60):
        while not delay.histogram.count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    delay.stop()

    assert delay.histogram.sum > 0.1


def test_the_process_tells_of_its_cpu_and_memory() -> None:
    page = server_text(MetricSource(Broker(), 1.0)).splitlines()
    lines = dict(line.split(" ") for line in page if not line.startswith("#"))

    assert float(lines["process_cpu_seconds_total"]) > 0
    assert int(lines["process_resident_memory_bytes"]) > 1 << 20
    assert 0 < int(lines["process_open_fds"]) <= int(lines["process_max_fds"])


@pytest.mark.parametrize("mode", ["off", "power"])
def test_metrics_have_deliveries_and_the_loop(start_broker: Callable[..., Any], mode: str) -> None:
    port = free_port()
    broker = start_broker(log={"metrics_port": f"127.0.0.1:{port}"}, durability={"mode": mode})
    assert broker.ports["http"] == port
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as client:
        client.sendall(encode_packet(Connect("c")))
        client.recv(100)
        client.sendall(encode_packet(Subscribe(1, (FilterRequest("a"),))))
        client.recv(100)
        for _ in range(40):
            client.sendall(encode_packet(Publish("a", b"x")))
            client.recv(100)
    page = _page(port)

    latency = buckets(page, "nearcast_delivery_latency_seconds")
    assert 1 <= latency["+Inf"] <= 20, "a sample: measuring every turn would cost throughput"
    assert latency["10.0"] == latency["+Inf"]
    assert "+Inf" in buckets(page, "nearcast_loop_delay_seconds")
    assert "# TYPE nearcast_loop_delay_seconds histogram" in page
    assert "\nprocess_cpu_seconds_total " in page
    assert "\nprocess_resident_memory_bytes " in page


def _page(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (9100, ("127.0.0.1", 9100)),
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_the_port_of_metrics_may_be_an_address(value: int | str, address: tuple[str, int]) -> None:
    assert LogSection(metrics_port=value).metrics_address() == address


@pytest.mark.parametrize("value", [-1, 65_536, "host", "::1:9100", "0.0.0.0:", ":9100"])
def test_what_is_no_address_is_refused(value: int | str) -> None:
    with pytest.raises(ValueError, match="is no HOST:PORT"):
        Configuration.model_validate({"log": {"metrics_port": value}})
