"""A day of devices that come and go, in simulated time: does the broker's memory stay flat?

    python fuzz/churn.py --hours 24 --devices 300
    NEARCAST_PLAIN=1 python fuzz/churn.py          # the same as plain Python

The broker's core is in this process and is told the time, so a day takes minutes. Devices connect
for half an hour or so and are away as long; two in five have durable sessions, which sometimes
expire while messages wait in them; every tenth visit is of a client that never comes back. They
publish at every QoS, on topics of their own, on new ones and on common ones; what they retain is on
4,500 common topics, expires, and is partly deleted; wills and delayed wills are published;
subscriptions come and go, wildcards and shared ones among them. The memory of the process, devices
included, is read after every hour; caches are full after half of a day at most.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import os
import random
import time
from pathlib import Path

from nearcast import compiled_core
from nearcast.broker import Broker, Connection
from nearcast.mqtt import Connect, Conversation, FilterRequest, Properties, Publish, Will

HOUR_MS = 3_600_000
AWAY_MS = VISIT_MS = 1_800_000
PAUSE_MS = 60_000
MOST_GROWN = 0.04


def memory_mb() -> float:
    """Return the memory that this process holds."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Device:
    """A client that is connected or away; `until_ms` is when it leaves."""

    def __init__(self, name: str, *, is_durable: bool) -> None:
        self.name = name
        self.is_durable = is_durable
        self.link: Connection | None = None
        self.conversation: Conversation | None = None
        self.until_ms = 0
        self.filters: list[str] = []


class Day:
    """A broker, its devices, and the time."""

    def __init__(self, devices: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = Broker(with_journal=True)
        self.now_ms = 1
        self.visits = self.messages = self.received = 0
        self._fresh = itertools.count()
        self._by_link: dict[Connection, Device] = {}
        self._due: list[tuple[float, int, Device]] = []
        self._number = itertools.count()
        for number in range(devices):
            device = Device(f"device-{number}", is_durable=number % 5 < 2)
            self._later(device, self.random.uniform(0, AWAY_MS + VISIT_MS))

    def _later(self, device: Device, wait_ms: float) -> None:
        heapq.heappush(self._due, (self.now_ms + wait_ms, next(self._number), device))

    def run_hour(self) -> None:
        """Let an hour pass."""
        until_ms = self.now_ms + HOUR_MS
        while self._due[0][0] < until_ms:
            due_ms, _, device = heapq.heappop(self._due)
            self._pass_until(int(due_ms))
            self._act(device)
            self._settle()
        self._pass_until(until_ms)

    def _pass_until(self, now_ms: int) -> None:
        while (wake_ms := self.node.wake_at()) is not None and wake_ms <= now_ms:
            self.now_ms = max(self.now_ms, wake_ms)
            self.node.wake(self.now_ms)
            self._settle()
        self.now_ms = max(self.now_ms, now_ms)

    def _act(self, device: Device) -> None:
        if device.link is None:
            self._come(device)
        elif self.now_ms >= device.until_ms:
            self._go(device)
        else:
            self._say(device)
            self._later(device, self.random.expovariate(1 / PAUSE_MS))

    def _come(self, device: Device) -> None:
        self.visits += 1
        if self.random.random() < 0.1:  # somebody else, once
            self._later(device, self.random.expovariate(1 / AWAY_MS))
            device = Device(f"guest-{next(self._fresh)}", is_durable=self.random.random() < 0.4)
        pick = self.random
        delay_s = pick.choice((None, None, 60, 7_200))
        will = Will(
            f"gone/{device.name}",
            b"gone",
            pick.randrange(3),
            properties=Properties(will_delay_interval=delay_s),
        )
        connect = Connect(
            device.name,
            clean_start=not device.is_durable or pick.random() < 0.05,
            keep_alive_s=pick.choice((0, 90, 600)),
            will=will if pick.random() < 0.5 else None,
            properties=Properties(
                session_expiry_interval=pick.choice((600, 3_600, 7_200)) if device.is_durable else 0
            ),
        )
        device.conversation = Conversation(connect, device.conversation)
        device.link = Connection()
        self._by_link[device.link] = device
        device.until_ms = self.now_ms + int(pick.expovariate(1 / VISIT_MS))
        self.node.open(device.link, self.now_ms)
        self._send(device)
        self._settle()
        connack = device.conversation.connack
        if connack is None or not connack.session_present:
            device.filters = [f"to/{device.name}/#"]
            device.conversation.subscribe(FilterRequest(device.filters[0], 1))
            self._send(device)
        self._later(device, pick.expovariate(1 / PAUSE_MS))

    def _go(self, device: Device) -> None:
        assert device.link is not None
        assert device.conversation is not None
        if self.random.random() < 0.5:
            device.conversation.disconnect()
            self._send(device)
        self._lost(device)

    def _lost(self, device: Device) -> None:
        link, device.link = device.link, None
        if not device.is_durable:
            device.conversation = None
        if link is not None:
            self._by_link.pop(link)
            self.node.lost(link, self.now_ms)
            if not device.name.startswith("guest-"):
                self._later(device, self.random.expovariate(1 / AWAY_MS))

    def _say(self, device: Device) -> None:
        """Publish, subscribe or unsubscribe."""
        assert device.conversation is not None
        pick = self.random
        kind = pick.random()
        if kind < 0.08:
            text = self._filter()
            device.filters.append(text)
            device.conversation.subscribe(FilterRequest(text, pick.randrange(3)))
        elif kind < 0.2 and device.filters:
            device.conversation.unsubscribe(device.filters.pop(pick.randrange(len(device.filters))))
        else:
            device.conversation.publish(self._message(device))
            self.messages += 1
        self._send(device)

    def _filter(self) -> str:
        pick = self.random
        number = pick.randrange(500)
        kinds = (f"place/{number}/+", f"place/+/{number}", f"$share/g{number % 9}/place/{number}/#")
        return pick.choice((*kinds, f"trip/{next(self._fresh)}/#", f"gone/device-{number}"))

    def _message(self, device: Device) -> Publish:
        pick = self.random
        number = pick.randrange(500)
        if pick.random() < 0.2:
            expiry = Properties(message_expiry_interval=pick.choice((60, 3_600, 7_200)))
            payload = b"" if pick.random() < 0.3 else pick.randbytes(300)
            topic = f"place/{number}/{pick.randrange(9)}"
            return Publish(topic, payload, pick.randrange(3), True, properties=expiry)
        topic = pick.choice((
            f"place/{number}/{pick.randrange(500)}",
            f"to/device-{number}/{pick.randrange(9)}",
            f"trip/{next(self._fresh)}/{device.name}",
        ))  # fmt: skip
        expiry = Properties(message_expiry_interval=pick.choice((None, 60)))
        return Publish(
            topic, pick.randbytes(pick.choice((9, 300))), pick.randrange(3), properties=expiry
        )

    def _send(self, device: Device) -> None:
        assert device.conversation is not None
        if device.link is not None and (data := device.conversation.take()):
            self.node.receive(device.link, data, self.now_ms)

    def _settle(self) -> None:
        """Carry bytes to and fro until nobody has anything to say."""
        self.node.take_journal()
        while dirty := self.node.take_dirty():
            for link in dirty:
                self._carry(link)
            self.node.take_journal()

    def _carry(self, link: Connection) -> None:
        data, link.outbox, link.outbox_bytes = b"".join(link.outbox), [], 0
        link.is_dirty = False
        device = self._by_link.get(link)
        if device is None:
            return
        assert device.conversation is not None
        self.received += len(device.conversation.receive(data))
        if link.is_closing:
            self._lost(device)
            return
        self._send(device)
        self.node.drained(link, self.now_ms)


def run(hours: int, devices: int, seed: int, most_grown: float = MOST_GROWN) -> str:
    """Return what was measured; raises if memory is greater at the end than in the first half."""
    day, began_s = Day(devices, seed), time.monotonic()
    by_hour = []
    for _ in range(hours):
        day.run_hour()
        by_hour.append(memory_mb())
    settled = max(by_hour[: max(1, hours // 2)])
    told = (
        f"{hours} hours of {devices} devices in {time.monotonic() - began_s:.0f} s, core "
        f"{compiled_core.described()}: {day.visits} connections, {day.messages} messages, "
        f"{day.received} packets received; MB after each hour: "
        + " ".join(f"{one:.1f}" for one in by_hour)
    )
    assert by_hour[-1] <= settled * (1 + most_grown), (
        f"{told}; expected {most_grown:.0%} more at most"
    )
    return told


def main() -> None:
    """Run as many hours as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--devices", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(run(given.hours, given.devices, given.seed))


if __name__ == "__main__":
    main()
