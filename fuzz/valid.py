"""Throw whole, valid packets with extreme values at a broker process with two bystanders.

    python fuzz/valid.py --seconds 60
    python fuzz/valid.py --seed 17 --seeds 1     # one seed again

Wills, properties, lengths, numbers, Unicode, `$` topics and our own `$` properties. After each
seed the broker is restarted, by turns with SIGTERM and `kill -9`. A bystander that is closed or
not served, an end or a start that fails, and any exception that the broker did not foresee is a
finding.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import socket
import sys
import time

from live import WAIT_S, Live, living
from nearcast.mqtt import (
    Auth,
    Connect,
    Disconnect,
    FilterRequest,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Subscribe,
    Unsubscribe,
    Will,
    encode_packet,
)

OFFENDERS = 40  # for each seed
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
LONGEST = 65_535

NUMBERS = (0, 1, 2, 127, 128, 16_383, 16_384, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
TEXTS = (
    "", "a", "\ufeff", "\ufffd", "\uffff", "\U0010ffff", "\x01\x1f\x7f\x9f", "é" * 20_000,
    "x" * LONGEST, "x" * (LONGEST - 1), "/" * 300, "%00%2F%", "a+b#c", "$", "$share", "\u202e",
)  # fmt: skip
TOPICS = (
    "a", "a/b", "/", "//", "shops/1", "shops/a/b", "cars/1", "$SYS/broker/uptime", "$position",
    "$position/a", "$nearcast/explain", "$nearcast/x", "$top/1/shops/1", "$top/999999999/shops/2",
    "$lifetime/99999999h/shops/3", "$lifetime/1us/shops/4", "$rank/nearest/$top/2/shops/5",
    "$area/8,47,9,48/shops/6", "$area/circle(8.5,47.5,1km)/shops/7", "$top/1/elsewhere", "$top",
    "$order/causal/shops/8", "$retained/now/a", "x/" * 127 + "x", "x/" * 128 + "x", "/" * 127,
    "x" * LONGEST, "x" * (LONGEST - 1), "shops/" + "y" * (LONGEST - 6), "é" * 30_000,
    "$share/g/a", "$unknown/x", "\ufeff", "shops/\U0010ffff", "cars/" + "z" * 1_000,
)  # fmt: skip
FILTERS = (
    *TOPICS, "#", "+", "+/+", "/#", "+/" * 127 + "#", "+/" * 60 + "+", "$SYS/#", "$position/#",
    "$position/+",
    "$share/g/#", "$share/g/shops/#", "$share//a", "$share/g", "$share/+/a", "a/#/b", "a+", "",
    "$where/price<5/shops/#", "$where/price<5;kind=food/shops/+", "$near/500m/shops/#",
    "$near/1e300km/shops/#", "$near/20015km/shops/#", "$area/-180,-90,180,90/shops/#",
    "$near/1m/$where/price<1/$retained/now/shops/#", "$share/g/$where/price<5/shops/#",
    "$where/" + "(" * 500 + "/shops/#", "$near/1m/" * 7_000 + "a", "$where/cars/#",
)  # fmt: skip
WHERES = (
    "price < 5", "price in [0, 1e308]", "kind in (food, tools)", "not " * 300 + "price < 1",
    "(" * 300 + "price<1" + ")" * 300, " or ".join(f"price = {n}" for n in range(300)),
    " and ".join(["price < 5"] * 1_000), "price < nan", "price < 1e999", "price<-0", "",
    "\U0010ffff",
    "price != 5 and kind != food", "x" * 60_000, "price < " + "9" * 400,
    "price = 0.1" + "0" * 5_000,
)  # fmt: skip
AREAS = (
    "8,47,9,48", "bbox(8,47,9,48)", "circle(8.5,47.5,10m)", "circle(0,90,20015km)",
    "circle(180,0,1m)", "circle(nan,0,1m)", "circle(8,47,1e308km)", "bbox(179,0,-179,1)",
    "bbox(0,0,0,0)", "bbox(-180,-90,180,90)", "", "(" * 5_000, "geojson({})", "geojson([[[",
    'geojson({"type":"Polygon","coordinates":[[[8,47],[9,47],[9,48],[8,47]]]})',
    'geojson({"type":"Polygon","coordinates":[[[170,0],[-170,0],[-170,9],[170,0]]]})',
    'geojson({"type":"Polygon","coordinates":[[[0,0],[0,0],[0,0],[0,0]]]})',
    'geojson({"type":"Polygon","coordinates":[[[1e308,0],[NaN,0],["\\ud800",9],[1,0]]]})',
    'geojson({"type":"Polygon","coordinates":['
    + ",".join("[[8,47],[9,47],[9,48],[8,47]]" for _ in range(500)) + "]})",
    'geojson({"type":"Polygon","coordinates":[['
    + ",".join(f"[{n * 37 % 360 - 180},{n * 91 % 180 - 90}]" for n in range(900)) + "]]})",
    'geojson({"type":"MultiPolygon","coordinates":[[[[8,47],[9,47],[9,48],[8,47]]]]})',
)  # fmt: skip
AMOUNTS = (
    "0", "1", "-1", "999999999", "9999999999", "1e308", "-1e308", "1e-308", "nan", "inf", "", "1.5",
    "9" * 400, "0x10", "١", "99999999h", "4294967295s", "4294967296s", "1us", "0s", "1e308d",
    "250ms",
    "500m", "1e300km", "20015km", "0.0000001m", "true", "false", "matches", "nearest", "weight",
    "centre", "causal", "now", "8.5,47.5", "180,90", "-180,-90", "1e999,0", ",",
)  # fmt: skip
NAMES = (
    "$where", "$area", "$near", "$retained", "$explain", "$label", "$weight", "$top", "$rank",
    "$lifetime", "$order", "$reply", "$deliver", "$position", "lon", "lat", "price", "kind",
    "other",
)  # fmt: skip
PAYLOADS = (
    b"", b"x", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000,
    b'{"price": 3, "kind": "food", "lon": 8.5, "lat": 47.5}',
    b'{"price": 1e308, "kind": "food", "lon": 180, "lat": 90}',
    b'{"price": ' + b"9" * 5_000 + b"}",
    b'{"price": ' + b"9" * 400 + b', "lon": ' + b"9" * 400 + b"}",
    b'{"price": NaN, "lon": Infinity, "lat": -Infinity}', b'{"price": 1, "kind": "\\ud800"}',
    b'{"price": true, "kind": ["food"], "lon": {}, "lat": "47"}', b'{"price": -0.0, "lat": 1e-320}',
    b'{"lon": 8.5, "lat": 47.4}', b'{"lon": "\\udfff", "lat": 1}', b'{"lon": 1e400, "lat": 0}',
    b'{"client": "bystander/listener", "topic": "shops/1", "payload": {"price": 1}}',
    b'{"client": "\\ud800", "topic": "\\udfff"}',
    b'{"client": "a", "topic": "' + b"x/" * 200 + b'"}',
    b'{"client": "a", "topic": "a", "properties": {"$lifetime": "99999999h"}, "qos": 3}',
    b'{"client": "a", "topic": "shops/1", "properties": [["$top", 1e308], ["$top", 2]]}',
    b"x" * 200_000, b" " * 100_000 + b"{}", b'{"price": 0.' + b"1" * 100_000 + b"}",
)  # fmt: skip


class Generator:
    """Packets that keep the rules of MQTT, or nearly, with values that few clients send."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.name = f"offender-{seed}"

    def maybe(self, share: float = 0.3) -> bool:
        return self.rng.random() < share

    def pairs(self) -> tuple[tuple[str, str], ...]:
        rng, found = self.rng, []
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 200) if self.maybe() else (0, 1, 2))):
            name = rng.choice(NAMES) if self.maybe(0.9) else rng.choice(TEXTS)
            values = {"$where": WHERES, "$area": AREAS}.get(name, AMOUNTS)
            found.append((name, rng.choice(values if self.maybe(0.9) else TEXTS)))
        return tuple(found)

    def publish_properties(self, *, for_will: bool = False) -> Properties:
        rng = self.rng
        return Properties(
            payload_format_indicator=rng.choice((None, 0, 1)),
            message_expiry_interval=rng.choice((None, *NUMBERS)) if self.maybe() else None,
            content_type=rng.choice(TEXTS) if self.maybe(0.1) else None,
            response_topic=rng.choice(TOPICS) if self.maybe() else None,
            correlation_data=rng.randbytes(rng.choice((0, 1, 65_535))) if self.maybe(0.1) else None,
            will_delay_interval=rng.choice((None, *NUMBERS)) if for_will else None,
            topic_alias=rng.choice((1, 64, 65, 65_535))
            if self.maybe(0.1) and not for_will
            else None,
            user_properties=self.pairs(),
        )

    def connect(self, version: ProtocolVersion) -> Connect:
        rng, will, properties = self.rng, None, Properties()
        if self.maybe(0.6):
            rich = self.publish_properties(for_will=True) if version is V5 else Properties()
            payload = rng.choice(PAYLOADS)[:LONGEST]
            will = Will(rng.choice(TOPICS), payload, rng.randrange(3), self.maybe(), rich)
        if version is V5:
            properties = Properties(
                session_expiry_interval=rng.choice((None, *NUMBERS)),
                receive_maximum=rng.choice((None, 1, 2, 65_535)),
                maximum_packet_size=rng.choice(NUMBERS[1:]) if self.maybe(0.2) else None,
                topic_alias_maximum=rng.choice((None, 0, 1, 65_535)),
                request_problem_information=rng.choice((None, 0, 1)),
                user_properties=self.pairs(),
            )
        name = self.name + (
            rng.choice(TEXTS)[:60_000] if self.maybe(0.2) else str(rng.randrange(4))
        )
        clean, keep_alive_s = self.maybe(0.5), rng.choice((0, 1, 65_535))
        return Connect(name, version, clean, keep_alive_s, will, properties=properties)

    def packet(self, version: ProtocolVersion) -> Packet:
        rng, number = self.rng, self.rng.choice((1, 2, 3, 65_535))
        kind = rng.randrange(10)
        rich = version is V5
        if kind < 5:
            properties = self.publish_properties() if rich else Properties()
            qos = rng.randrange(3)
            payload = rng.choice(PAYLOADS)
            packet_id = number if qos else 0
            return Publish(
                rng.choice(TOPICS), payload, qos, self.maybe(), False, packet_id, properties
            )
        if kind < 8:
            identifiers = (rng.choice((1, 127, 128, 268_435_455)),) if rich and self.maybe() else ()
            properties = Properties(
                user_properties=self.pairs() if rich else (), subscription_identifiers=identifiers
            )
            filters = tuple(
                FilterRequest(
                    rng.choice(FILTERS),
                    rng.randrange(3),
                    rich and self.maybe(0.1),
                    rich and self.maybe(),
                    rng.randrange(3) if rich else 0,
                )
                for _ in range(rng.choice((1, 1, 2, 5)))
            )
            return Subscribe(number, filters, properties)
        if kind == 8:
            properties = Properties(user_properties=self.pairs() if rich else ())
            return Unsubscribe(number, tuple(rng.choices(FILTERS, k=3)), properties)
        answer = PublishAnswer(PacketType(rng.choice((4, 5, 6, 7))), number)
        return rng.choice((answer, answer, Auth(0x18) if rich else answer))

    def conversation(self) -> tuple[ProtocolVersion, bytes]:
        """Return all that one offender says, and in which version."""
        version = V5 if self.maybe(0.75) else V311
        packets: list[Packet] = [self.connect(version)]
        packets += [self.packet(version) for _ in range(self.rng.choice((0, 1, 2, 4, 8)))]
        packets.append(Pingreq())
        if self.maybe(0.2):
            later = self.rng.choice((None, *NUMBERS)) if version is V5 else None
            reason = self.rng.choice((0, 4)) if version is V5 else 0
            packets.append(Disconnect(reason, Properties(session_expiry_interval=later)))
        return version, b"".join(encode_packet(one, version) for one in packets)


def offend(live: Live, version: ProtocolVersion, data: bytes) -> None:
    """Say it all; wait until the broker has answered or closed. Bystanders ping meanwhile."""
    link = socket.create_connection(("127.0.0.1", live.port), timeout=WAIT_S)
    reader = PacketReader(version)  # it raises where the broker itself breaks the rules
    with link, contextlib.suppress(ConnectionError):
        link.sendall(data)
        live.ping()
        while part := link.recv(1 << 20):
            if any(isinstance(one, Pingresp) for one in reader.feed(part)):
                return


def run_seed(live: Live, seed: int, offenders: int = OFFENDERS) -> None:
    generator = Generator(seed)
    for number in range(offenders):
        version, data = generator.conversation()
        try:
            offend(live, version, data)
            if number % 8 == 7:
                live.check()
        except BaseException:
            shown = data.hex() if len(data) < 2_000 else f"{data[:500].hex()} … {len(data)} bytes"
            print(f"seed {seed}, offender {number}: {shown}", file=sys.stderr)
            raise
    live.restart(signal.SIGTERM if seed % 2 else signal.SIGKILL)


def run(seconds: float, seed: int, seeds: int, offenders: int = OFFENDERS) -> str:
    """Run seeds until time or number are up; return what there is to tell."""
    until, last = time.monotonic() + seconds, seed + seeds
    with living() as live:
        try:
            while seed < last and time.monotonic() < until:
                run_seed(live, seed, offenders)
                seed += 1
        except BaseException:
            print(f"in seed {seed}", file=sys.stderr)
            raise
        live.assert_quick()
        return (
            f"{live.restarts} seeds of {offenders} offenders, a restart after each; {live.count}"
            f" messages between bystanders, the slowest took {live.slowest_s * 1000:.0f} ms;"
            f" {live.told_pings()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1 << 30)
    arguments = parser.parse_args()
    print(run(arguments.seconds, arguments.seed, arguments.seeds))


if __name__ == "__main__":
    main()
