"""Attacks on a broker process, one function per class; `attacks.py` runs them beside bystanders.

    python fuzz/attack_classes.py WORLD.json SECONDS CLASS [CLASS …]

The classes run one after the other; with a `share` in the world they all run at the same time, and
use about that much of one core together. A function is one round of its class. It raises
`FindingError` where the broker gave what it must not: a login, a subscription, a message of others,
an answer that tells a position. Attackers have no name; the rules allow them `eve/#`, `once/#`,
`shops/#` and `own/…`. What others publish below `secret/` contains SECRET, what attackers publish
where they may not contains FORGED.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

import jwt

from nearcast.mqtt import (
    Connack,
    Connect,
    FilterRequest,
    MqttProtocolError,
    Packet,
    PacketReader,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    PublishAnswer,
    Suback,
    Subscribe,
    Will,
    encode_packet,
)

WAIT_S = 20.0
LOGIN_S = 8.0  # a client that has not logged in for longer may be closed
SECRET, FORGED = b"SECRET", b"FORGED"
TOKEN_SECRET = "the soak's own secret, that no attacker has".ljust(64, ".")
NEAR, FAR = (8.5, 47.5), (-8.5, -47.5)  # where the bystander is, and where nobody is
V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
REFUSED = 0x80
NAME: ContextVar[str] = ContextVar("NAME", default="eve")
"""The client identifier of a class: classes at the same time do not take each other's session."""


class FindingError(Exception):
    """The broker gave an attacker what it must not."""


@dataclass(slots=True)
class AttackedBroker:
    """Where the broker is, and the files that an attack of an operator's mistakes changes."""

    port: int
    page_port: int
    proxy_port: int
    pid: int
    users: Path
    sections: Path
    rng: random.Random = field(default_factory=random.Random)
    changing: threading.Lock = field(default_factory=threading.Lock)  # the files

    def reload(self) -> None:
        os.kill(self.pid, signal.SIGHUP)


class Link:
    """A connection of an attacker; nothing secret may come in."""

    def __init__(self, port: int, version: ProtocolVersion = V5) -> None:
        self.version = version
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._reader = PacketReader(version)
        self._packets: list[Packet] = []
        self._tail = b""

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *what: Packet | bytes) -> None:
        """Send packets or bytes; an end of the connection is the broker's answer."""
        data = b"".join(
            one if isinstance(one, bytes) else encode_packet(one, self.version) for one in what
        )
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def read(self) -> bytes:
        """Return what comes next; empty at the end of the connection."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionError:
            return b""
        if SECRET in self._tail + data:
            raise FindingError("a message that is for others came in")
        self._tail = data[-len(SECRET) :]
        return data

    def until(self, kind: type[Packet]) -> Packet | None:
        """Return the next packet of a kind; None if the connection ends first."""
        while True:
            while self._packets:
                packet = self._packets.pop(0)
                if isinstance(packet, kind):
                    return packet
            data = self.read()
            if not data:
                return None
            self._packets += self._reader.feed(data)

    def expect_end(self) -> None:
        """Wait until the broker closes."""
        try:
            while self.read():
                pass
        except TimeoutError:
            raise FindingError("the broker does not close the connection") from None

    def codes(self, *filters: str) -> tuple[int, ...] | None:
        """Subscribe; return the reason codes, None if the broker closes."""
        self.send(Subscribe(1, tuple(FilterRequest(one, 1) for one in filters)))
        answer = self.until(Suback)
        return answer.reasons if isinstance(answer, Suback) else None

    def settle(self) -> bool:
        """Wait until the broker has handled all so far; return whether it still listens."""
        self.send(Pingreq())
        return self.until(Pingresp) is not None


def entered(port: int, client_id: str = "", **more: object) -> Link:
    """Return a connection of a client that the broker has welcomed."""
    version = more.get("version", V5)
    link = Link(port, version)  # type: ignore[arg-type]
    link.send(Connect(client_id or NAME.get(), keep_alive_s=0, **more))  # type: ignore[arg-type]
    answer = link.until(Connack)
    if not isinstance(answer, Connack) or answer.reason:
        raise FindingError(f"a client without a name is refused on loopback: {answer}")
    return link


def refused(port: int, before: bytes = b"", **more: object) -> None:
    """Log in; the broker must refuse."""
    with Link(port) as link:
        link.send(before, Connect(NAME.get(), **more))  # type: ignore[arg-type]
        answer = link.until(Connack)
        if isinstance(answer, Connack) and not answer.reason:
            raise FindingError(f"welcome: {more}")


# --- rules ----------------------------------------------------------------------------------------


def names_with_wildcards(world: AttackedBroker) -> None:
    name = world.rng.choice(("#", "+", "a/#", "+/x", "bob/secret", "%u", "%c", "$share/g/#"))
    with entered(world.port, name) as link:
        filters = ("own/bob/x", "own/+/x", "own/#", "own/bob/secret", "#", "+/x", "secret/#")
        codes = link.codes(*filters)
        if codes is None or any(one < REFUSED for one in codes):
            raise FindingError(f"{name!r} may subscribe: {codes}")


def messages_of_others(world: AttackedBroker) -> None:
    """Retained, live and queued messages below `secret/`."""
    filters = ("secret/#", "#", "+/+", "$share/g/secret/#", "$share/g/#", "secret/live", "+/live")
    resumed = Properties(session_expiry_interval=30)
    with entered(world.port, "eve-reads", clean_start=False, properties=resumed) as link:
        codes = link.codes(*world.rng.sample(filters, 3))
        if codes is None or any(one < REFUSED for one in codes):
            raise FindingError(f"subscribed: {codes}")
        link.send(Publish("secret/x", FORGED, 1, packet_id=2), Publish("healthy", FORGED))
        link.settle()
    with entered(world.port, "eve-reads", clean_start=False, properties=resumed) as link:
        link.settle()


def withdrawn_rules(world: AttackedBroker) -> None:
    """A durable subscription, whose rule goes and comes back."""
    resumed = Properties(session_expiry_interval=30)
    with entered(world.port, "eve-once", clean_start=False, properties=resumed) as link:
        link.codes("once/#")
        link.send(Publish("once/x", b"allowed", 1, packet_id=2))
        link.until(PublishAnswer)
        with world.changing, without_rule(world, "once/#"):
            until_s = time.monotonic() + WAIT_S
            while (link.codes("once/again") or (REFUSED,))[0] < REFUSED:
                if time.monotonic() > until_s:
                    raise FindingError("rules that are withdrawn go on")
                time.sleep(0.05)
            link.send(Publish("once/x", FORGED, 1, packet_id=3))
            answer = link.until(PublishAnswer)
            if isinstance(answer, PublishAnswer) and answer.reason < REFUSED:
                raise FindingError("published under a rule that is gone")
            link.settle()


def write(path: Path, text: str) -> None:
    """Replace a file: a reload that is under way reads the old one or the new one."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


@contextlib.contextmanager
def without_rule(world: AttackedBroker, topic: str) -> Iterator[None]:
    """Withdraw the rule of a topic for the time of a block."""
    text = world.sections.read_text()
    sections = json.loads(text)
    rules = sections["auth"]["rules"]
    sections["auth"]["rules"] = [one for one in rules if one["topic"] != topic]
    try:
        write(world.sections, json.dumps(sections))
        world.reload()
        yield
    finally:
        write(world.sections, text)
        world.reload()


def bad_lines_of_users(world: AttackedBroker) -> None:
    line = world.rng.choice(("ghost", "ghost:", ":x", "ghost:plain", "ghost:scrypt$1$1$1$$"))
    with world.changing:
        text = world.users.read_text()
        try:
            write(world.users, line + "\n")
            world.reload()
            time.sleep(0.05)
            for password in (b"", b"plain", b"scrypt$1$1$1$$", None):
                refused(world.port, user_name="ghost", password=password)
        finally:
            write(world.users, text)
            world.reload()


def reloads_in_a_crowd(world: AttackedBroker) -> None:
    links = []
    began_s = time.monotonic()
    for number in range(100):
        links.append(Link(world.port))
        if number % 20 == 0:
            with world.changing:
                world.reload()
    for one in links:
        with one:
            one.send(Connect(f"crowd-{world.rng.random()}"))
            is_late = time.monotonic() - began_s > LOGIN_S
            if one.until(Connack) is None and not is_late:
                raise FindingError("a reload has ended a connection")


# --- logins ---------------------------------------------------------------------------------------


def guesses(world: AttackedBroker) -> None:
    name = world.rng.choice(("calm", "root", "page:operator:", "%u", "#"))
    refused(world.port, user_name=name, password=world.rng.randbytes(6))


def no_password(world: AttackedBroker) -> None:
    for password in (None, b""):
        refused(world.port, user_name="calm", password=password)


def forged_tokens(world: AttackedBroker) -> None:
    """Tokens without a signature, under another secret, of yesterday, for others, with more in."""
    claims = {"sub": "calm", "aud": "soak", "exp": time.time() + 600}
    good = jwt.encode(claims, TOKEN_SECRET, "HS256").split(".")
    more = jwt.encode(claims | {"acl": [{"topic": "#"}]}, "x" * 40, "HS256").split(".")
    tokens = (
        jwt.encode(claims, "", "none"),
        jwt.encode(claims, "x" * 40, "HS256"),
        jwt.encode(claims, TOKEN_SECRET, "HS512"),
        jwt.encode(claims | {"exp": time.time() - 3_600}, TOKEN_SECRET, "HS256"),
        jwt.encode(claims | {"aud": "others"}, TOKEN_SECRET, "HS256"),
        jwt.encode(claims | {"sub": ["calm"]}, TOKEN_SECRET, "HS256"),
        jwt.encode(claims | {"sub": "page:operator:"}, TOKEN_SECRET, "HS256"),
        ".".join((good[0], more[1], good[2])),
        ".".join((more[0], good[1], "")),
    )
    refused(world.port, password=world.rng.choice(tokens).encode())


def stolen_identifiers(world: AttackedBroker) -> None:
    name = world.rng.choice(("bystander/listener", "bystander/speaker"))
    with Link(world.port, world.rng.choice((V311, V5))) as link:
        link.send(Connect(name, link.version, clean_start=world.rng.random() < 0.5))
        answer = link.until(Connack)
        if isinstance(answer, Connack) and not answer.reason:
            raise FindingError("the session of another user")


def proxies(world: AttackedBroker) -> None:
    """A client of elsewhere behind a proxy is no client of this machine."""
    for line in (b"PROXY TCP4 192.0.2.7 192.0.2.1 5 1883\r\n", b"PROXY UNKNOWN\r\n", b""):
        refused(world.proxy_port, line)
    for line in (b"PROXY TCP4 127.0.0.1\r\n", b"PROXY TCP4 127.0.0.1 127.0.0.1 70000 1\r\n"):
        refused(world.proxy_port, line)


def origins(world: AttackedBroker) -> None:
    """A page of elsewhere in a browser of this machine."""
    fields = world.rng.choice(
        (
            "Host: localhost\r\nOrigin: https://evil.example\r\n",
            "Host: evil.example\r\nOrigin: http://evil.example\r\n",
            "Host: 127.0.0.1.evil.example\r\nOrigin: http://127.0.0.1.evil.example\r\n",
            "Host: localhost\r\nOrigin: null\r\n",
        )
    )
    upgrade = (
        f"GET /mqtt HTTP/1.1\r\n{fields}Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    with Link(world.page_port) as link:
        link.send(upgrade.encode())
        if link.read().startswith(b"HTTP/1.1 101"):
            raise FindingError(f"a page of another origin: {fields!r}")


def half_a_connect(world: AttackedBroker) -> None:
    will = Will("secret/x", FORGED)
    whole = encode_packet(Connect("eve", user_name="calm", password=b"p", will=will))
    links = [Link(world.port) for _ in range(30)]
    for link in links:
        link.send(whole[: world.rng.randrange(1, len(whole))])
    for link in links:
        link.__exit__()


def connections(world: AttackedBroker) -> None:
    for _ in range(50):
        Link(world.port).__exit__()


# --- packets --------------------------------------------------------------------------------------


def bad_utf_8(world: AttackedBroker) -> None:
    bad = world.rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\0b"))
    first, number = world.rng.choice(((0x30, b""), (0x32, b"\0\1"), (0x34, b"\0\1")))
    body = len(bad).to_bytes(2, "big") + bad + number + b"\0" + FORGED
    with entered(world.port) as link:
        link.send(bytes((first, len(body))) + body)
        link.expect_end()


def dollar_topics(world: AttackedBroker) -> None:
    names = ("$", "$x", "$SYS/x", "$share/g/x", "$nearcast/x", "$CONTROL/x", "$queue/x", "$where/x")
    with entered(world.port, version=world.rng.choice((V311, V5))) as link:
        topic, qos = world.rng.choice(names), world.rng.randrange(3)
        link.send(Publish(topic, FORGED, qos, world.rng.random() < 0.5, packet_id=5 if qos else 0))
        link.settle()


def slashes(world: AttackedBroker) -> None:
    deep = "/" * 65_400
    with entered(world.port) as link:
        codes = link.codes(deep)
        if codes is not None and codes[0] < REFUSED:
            raise FindingError("a filter of 65,400 levels")
        link.send(Publish(deep, FORGED, 1, packet_id=5))
        link.expect_end()


def packets_of_brokers(world: AttackedBroker) -> None:
    packets = (b"\x20\x02\0\0", b"\x20\x03\0\0\0", b"\x90\x03\0\1\0", b"\xb0\x02\0\1", b"\xd0\0")
    with entered(world.port) if world.rng.random() < 0.5 else Link(world.port) as link:
        link.send(world.rng.choice(packets))
        link.expect_end()


def lengths_of_five_bytes(world: AttackedBroker) -> None:
    first = world.rng.choice((0x10, 0x30, 0x32, 0x40, 0x62, 0x82, 0xC0, 0xE0, 0xF0))
    with entered(world.port) if world.rng.random() < 0.5 else Link(world.port) as link:
        link.send(bytes((first,)) + b"\xff\xff\xff\xff\x01" + bytes(64))
        link.expect_end()


def one_qos_2_identifier(world: AttackedBroker) -> None:
    with entered(world.port) as link:
        packet = encode_packet(Publish("eve/2", bytes(1_000), 2, packet_id=7))
        link.send(packet * 200, encode_packet(PublishAnswer(PacketType.PUBREC, 9)) * 200)
        link.settle()


def bad_properties(world: AttackedBroker) -> None:
    """Properties that do not belong there, of a PUBLISH and of a will."""
    wrong = (b"\x0b\x05", b"\x11\x00\x00\x00\x05", b"\x21\x00\x05", b"\x7f\x00", b"\x26\x00\x01a")
    properties = world.rng.choice(wrong)
    sized = bytes((len(properties),)) + properties
    with entered(world.port) as link:
        body = b"\0\5eve/x" + sized + FORGED
        link.send(bytes((0x30, len(body))) + body)
        link.expect_end()
    body = b"\0\4MQTT\5\x06\0\0\0" + b"\0\3eve" + sized + b"\0\1w\0\1x"
    with Link(world.port) as link:
        link.send(bytes((0x10, len(body))) + body)
        link.expect_end()


def wills(world: AttackedBroker) -> None:
    """Wills where their client may not publish, now or much later; each ends with its session."""
    delay_s = world.rng.choice((0, 1, 0xFFFF_FFFF))
    will = Will("secret/will", FORGED, 1, properties=Properties(will_delay_interval=delay_s))
    expiry = Properties(session_expiry_interval=1)
    with entered(world.port, f"eve-{world.rng.randrange(50)}", will=will, properties=expiry):
        pass


def control_characters(world: AttackedBroker) -> None:
    sign = world.rng.choice(("\n", "\r", "\t", "\x1b[2J", "\x7f", "\x85", "\ufeff", "\u202e"))
    with Link(world.port, V311) as link:
        link.send(Connect(f"e{sign}ve", V311), Publish(f"eve/a{sign}b", FORGED))
        with contextlib.suppress(MqttProtocolError):
            link.codes(f"eve/b{sign}y")


# --- work -----------------------------------------------------------------------------------------

LANGUAGE = (
    "(" * 5_000 + "price < 1" + ")" * 5_000,
    "not " * 4_000 + "price < 1",
    " and ".join(f"(price < {n} or price > {n + 1})" for n in range(300)),
    " or ".join(f"(price < {n} and kind = food)" for n in range(500)),
    "price in (" + ",".join(map(str, range(3_000))) + ")",
    "price < " + "9" * 10_000,
)


def conditions(world: AttackedBroker) -> None:
    pairs = (("$where", world.rng.choice(LANGUAGE)),)
    with entered(world.port) as link:
        wish = Subscribe(1, (FilterRequest("shops/#"),), Properties(user_properties=pairs))
        link.send(wish)
        if link.until(Suback) is None:
            raise FindingError("a condition closes the connection")


def places(world: AttackedBroker) -> None:
    """Where is the bystander? By reason codes, boxes, `$reply` and `$top`."""
    with entered(world.port, "eve-asks") as link:
        link.codes("eve/answers")
        answers = set()
        for number in range(20):
            lon, lat = NEAR if number % 2 else FAR
            spread = world.rng.choice((0.0001, 0.01, 1.0))
            box = f"{lon - spread},{lat - spread},{lon + spread},{lat + spread}"
            pairs = (("$area", box),) if number % 4 < 2 else (("$reply", "matches"), ("$top", "3"))
            told = Properties(
                response_topic="eve/answers" if number % 4 >= 2 else None, user_properties=pairs
            )
            payload = b'{"price": 1, "kind": "food", "lon": %f, "lat": %f}' % (lon, lat)
            link.send(Publish("shops/1", payload, 1, packet_id=number + 1, properties=told))
            answer = link.until(PublishAnswer)
            assert isinstance(answer, PublishAnswer), "closed"
            if answer.reason != 0x97:  # the limit of questions about a place
                answers.add((number % 4 // 2, answer.reason))
        if len({reason for _, reason in answers}) > 1:
            raise FindingError(f"reason codes depend on the place: {answers}")


def floods(world: AttackedBroker) -> None:
    with entered(world.port) as link:
        packet = encode_packet(Publish("eve/flood", bytes(100)))
        for _ in range(20):
            link.send(packet * 500)
        link.settle()


def unread_answers(world: AttackedBroker) -> None:
    """A client that subscribes, publishes, and never reads."""
    with entered(world.port) as link:
        link.codes("eve/#")
        link._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(200):
                link.send(Publish("eve/unread", bytes(60_000)))


TOGETHER = "together"
"""The name of the time in which all classes run."""
CLASSES: dict[str, Callable[[AttackedBroker], None]] = {
    one.__name__: one
    for one in (
        *(names_with_wildcards, messages_of_others, withdrawn_rules, bad_lines_of_users),
        *(
            reloads_in_a_crowd,
            guesses,
            no_password,
            forged_tokens,
            stolen_identifiers,
            proxies,
            origins,
        ),
        *(half_a_connect, connections, bad_utf_8, dollar_topics, slashes, packets_of_brokers),
        *(lengths_of_five_bytes, one_qos_2_identifier, bad_properties, wills),
        *(control_characters, conditions, places, floods, unread_answers),
    )
}


@dataclass(slots=True)
class Runs:
    """Runs classes for a time, and writes a line of JSON for each beginning, end and finding."""

    world: AttackedBroker
    seconds: float
    seed: int
    findings: int = 0

    def run(self, name: str, share: float = 0.0) -> None:
        """Run one class until its time is over or something is found; raises nothing.

        With a `share` it pauses between rounds, so that it uses that much of a core.
        """
        NAME.set(f"eve-{name}")
        world = replace(self.world, rng=random.Random(f"{self.seed} {name}"))
        began_s, rounds = time.monotonic(), 0
        used_s = time.thread_time()
        while not rounds or (time.monotonic() < began_s + self.seconds and not self.findings):
            try:
                CLASSES[name](world)
            except Exception as problem:  # noqa: BLE001 - whatever it is, it is a finding
                self.findings += 1
                _write(finding=f"{name}: {problem!r}")
                return
            rounds += 1
            if share:
                due_s = began_s + (time.thread_time() - used_s) / share
                time.sleep(max(0.0, min(due_s, began_s + self.seconds) - time.monotonic()))
        _write(ends=name, rounds=rounds)

    def one_by_one(self, names: list[str]) -> None:
        """Run one class after the other."""
        for name in names:
            _write(begins=name)
            self.run(name)
            if self.findings:
                return

    def together(self, names: list[str], share: float) -> None:
        """Run all classes at the same time; together they use `share` of a core."""
        each = share / len(names)
        threads = [threading.Thread(target=self.run, args=(name, each)) for name in names]
        _write(begins=TOGETHER)
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        _write(ends=TOGETHER, rounds=0)


def _write(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")  # with one call: threads write, too
    sys.stdout.flush()


def main() -> int:
    """Run the classes that the arguments name; return how many of them have found something."""
    given = json.loads(Path(sys.argv[1]).read_text())
    world = AttackedBroker(
        *(given[name] for name in ("port", "page_port", "proxy_port", "pid")),
        *(Path(given[name]) for name in ("users", "sections")),
    )
    runs, share = Runs(world, float(sys.argv[2]), given["seed"]), given["share"]
    if share:
        runs.together(sys.argv[3:], share)
    else:
        runs.one_by_one(sys.argv[3:])
    return runs.findings


if __name__ == "__main__":
    sys.exit(main())
