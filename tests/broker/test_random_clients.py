"""A random crowd that moves, selects, comes and goes gets what the definitions say, and once.

The model (`tests/support/crowd_model.py`) knows nothing of matchers, boxes in an index or routes.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.crowd_model import (
    AREAS,
    FILTERS,
    HYSTERESIS,
    NAMES,
    PLACES,
    RADII,
    SPACE,
    WHERES,
    Loose,
    Model,
    Person,
    Seen,
    Sub,
)
from tests.support.invariants import check_matcher

from nearcast.broker import BrokerSettings, SpaceSettings
from nearcast.model import (
    Event,
    MisuseError,
    Subscription,
    parse_shape,
    parse_where,
)
from nearcast.mqtt import (
    Disconnect,
    FilterRequest,
    Properties,
    ProtocolVersion,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
)


def value_of(pairs: tuple[tuple[str, str], ...], name: str) -> str:
    return next((text for key, text in pairs if key == name), "")


def in_order(packets: list[Publish]) -> bool:
    """Tell whether what came live came as it was published, queued or not; all have a number."""
    live = [json.loads(one.payload)["n"] for one in packets if one.payload and not one.retain]
    return live == sorted(live)


class Crowd:
    """A world and its model, side by side; `step` does something at random."""

    def __init__(self, make_world: Any, offline: str, *, is_plain: bool = False) -> None:
        self.is_plain = is_plain  # nobody asks to be told, and most packets are plain
        spaces = [
            SpaceSettings(
                space=SPACE,
                offline=offline,  # type: ignore[arg-type]
                hysteresis=HYSTERESIS,
                positions="publishers",
            )
        ]
        self.world = make_world(
            BrokerSettings(position_journal_ms=0), with_journal=True, spaces=spaces
        )
        self.model = Model(offline)
        self.model.now_ms = self.world.now_ms
        self.clients: dict[str, Any] = {}
        self.count = 0
        for name in NAMES:
            self.connect(name, True, 60)

    def here(self, name: str) -> bool:
        person = self.model.people.get(name)
        return person is not None and person.is_here

    def connect(self, name: str, clean: bool, expiry_s: int) -> None:
        self.compare()
        version = ProtocolVersion(NAMES[name])
        if version < 5:
            expiry_s = 0 if clean else self.world.settings.session_expiry_s
        old = self.model.people.get(name)
        if old is None or clean or not old.expiry_s:  # without expiry it ends when taken over
            self.forget_loose(name)
            self.model.people[name] = Person(version, expiry_s)
        else:
            old.is_here, old.expiry_s = True, expiry_s
            old.inbox = [one for one in old.inbox if not 0 < one[0] <= self.world.now_ms]
        props = {"session_expiry_interval": expiry_s} if version == 5 else {}
        client = self.world.client(name, version, clean_start=clean, props=props)
        client.packets.pop(0)
        self.clients[name] = client

    def forget_loose(self, name: str) -> None:
        """What waited for a session that ends is lost with it."""
        for loose in self.model.loose:
            if name in loose.candidates and not self.here(name):
                loose.expires_at_ms = 1  # it may have been the one

    def leave(self, name: str, politely: bool) -> None:
        if not self.here(name):
            return
        self.compare()
        self.clients[name].send(Disconnect()) if politely else self.clients[name].lose()
        self.model.people[name].is_here = False
        if not self.model.people[name].expiry_s:
            del self.model.people[name]

    def subscribe(
        self,
        name: str,
        topic_filter: str,
        where: str | None,
        area: str | None,
        near_m: float | None,
        shared: str,
        qos: int,
        options: tuple[bool, bool, bool],
        handling: int,
        weight: float,
    ) -> None:
        if not self.here(name):
            return
        no_local, explain, as_prefix = options
        is_new_style = NAMES[name] == 5
        if not is_new_style:
            shared, no_local, explain, handling, weight = "", False, False, 0, 1.0
        no_local, explain = no_local and not shared, explain and not shared
        selection = None
        if where or area or near_m:
            selection = Subscription(
                topic_filter=topic_filter,
                where=parse_where(where) if where else None,
                area=parse_shape(area) if area else None,
                near_m=near_m,
            )
        self.count += 1
        number = self.count if is_new_style else 0
        sub = Sub(name, topic_filter, selection, shared, qos, 0, no_local, number, weight, explain)
        pairs = [("$where", where), ("$area", area), ("$near", near_m and f"{near_m}m")]
        given = [(key, text) for key, text in pairs if text]
        text = f"$share/{shared}/{topic_filter}" if shared else topic_filter
        if as_prefix or not is_new_style:
            text, given = sub.identity, []
        given += [("$weight", str(weight)), ("$explain", "true" if explain else "false")]
        self.model.subscribe(sub, handling)
        request = FilterRequest(text, qos, no_local=no_local, retain_handling=handling)
        properties = Properties(
            subscription_identifiers=(number,) if number else (),
            user_properties=tuple(given) if is_new_style else (),
        )
        client = self.clients[name]
        client.send(Subscribe(client.next_id(), (request,), properties))
        answers = [one for one in client.packets if isinstance(one, Suback)]
        assert [one.reasons for one in answers] == [(qos,)]
        self.compare()

    def unsubscribe(self, name: str, pick: int, form: int) -> None:
        if not self.here(name) or not self.model.people[name].subs:
            return
        subs = self.model.people[name].subs
        sub = list(subs.values())[pick % len(subs)]
        start = f"$share/{sub.group}/" if sub.group else ""
        client, text = self.clients[name], sub.identity
        pairs: list[tuple[str, str]] = []
        if form == 1 and NAMES[name] == 5 and sub.selection is not None:
            text = start + sub.topic_filter
            wish = sub.selection
            pairs = [("$where", str(wish.where))] if wish.where else []
            pairs += [("$area", str(wish.area))] if wish.area else []
            pairs += [("$near", f"{wish.near_m}m")] if wish.near_m else []
        gone = [sub.identity]
        if form == 2 or sub.selection is None:
            text = start + sub.topic_filter
            same = (sub.group, sub.topic_filter)
            gone = [key for key, one in subs.items() if (one.group, one.topic_filter) == same]
        for key in gone:
            del subs[key]
        properties = Properties(user_properties=tuple(pairs))
        client.send(Unsubscribe(client.next_id(), (text,), properties))
        self.compare()

    def move(self, name: str, place: tuple[float, float]) -> None:
        if self.here(name):
            self.model.move(name, place)
            payload = json.dumps({"lon": place[0], "lat": place[1]}).encode()
            self.clients[name].publish("$position", payload)
            self.compare()

    def publish(
        self,
        name: str,
        topic: str,
        price: float,
        kind: str | None,
        place: tuple[float, float] | None,
        area: str | None,
        qos: int,
        flags: tuple[bool, bool, bool],
        top: int | None,
        rank: str | None,
        lifetime_ms: int | None,
    ) -> None:
        if not self.here(name):
            return
        retain, is_empty, as_prefix = flags
        self.count += 1
        values: dict[str, object] = {"price": price, "kind": kind}
        if place is not None:
            values |= {"lon": place[0], "lat": place[1]}
        payload = json.dumps({**values, "n": self.count}).encode()
        if retain and is_empty:
            payload = b""
        in_space = topic != "o"
        event = self.event(topic, values, area, payload) if in_space else None
        pairs = [("$top", top), ("$rank", rank), ("$area", area)]
        pairs.append(("$lifetime", f"{lifetime_ms}ms" if lifetime_ms else None))
        given = tuple((key, str(value)) for key, value in pairs if value is not None)
        sent_topic = topic
        if (as_prefix or NAMES[name] < 5) and in_space:
            levels = [part for key, value in given for part in (key, self.level(key, value))]
            sent_topic, given = "/".join([*levels, topic]), ()
        until = self.world.now_ms + lifetime_ms if lifetime_ms and in_space else 0
        self.model.publish(
            name, topic, payload, event, qos, retain, top, rank or "narrowest", until
        )
        properties = Properties(user_properties=given if NAMES[name] == 5 else ())
        self.clients[name].publish(sent_topic, payload, qos, retain=retain, properties=properties)
        self.compare()

    @staticmethod
    def level(key: str, value: str) -> str:
        return parse_shape(value).level() if key == "$area" else value

    @staticmethod
    def event(
        topic: str, values: dict[str, object], area: str | None, payload: bytes
    ) -> Event | None:
        if not payload:
            return None
        shape = parse_shape(area) if area else None
        named = {k: v for k, v in values.items() if not (shape and k in ("lon", "lat"))}
        try:
            return Event.of(SPACE, topic, named, shape)
        except MisuseError:
            return None

    def wait(self, ms: int) -> None:
        self.world.wait(ms)
        self.model.now_ms = self.world.now_ms

    def restart(self) -> None:
        self.compare()
        self.world.crash_and_restart()
        self.clients.clear()
        self.model.now_ms = self.world.now_ms
        for name in self.model.people:
            if not self.model.people[name].expiry_s:
                self.forget_loose(name)
        self.model.restart()

    # --- what must be true ----------------------------------------------------------------

    def compare(self) -> None:
        for name, person in self.model.people.items():
            if person.is_here:
                packets = self.clients[name].publications()
                assert in_order(packets), f"{name} got later messages before earlier ones"
                got = Counter(self.seen(packet) for packet in packets)
                wanted = Counter(seen for _, seen in person.inbox)
                person.inbox.clear()
                assert not wanted - got, f"{name} misses {wanted - got}"
                for extra in (got - wanted).elements():
                    self.resolve(name, extra)
        assert not [one for one in self.open_cases() if all(map(self.here, one.candidates))]

    def open_cases(self) -> list[Loose]:
        now_ms = self.world.now_ms
        return [one for one in self.model.loose if not 0 < one.expires_at_ms <= now_ms]

    def resolve(self, name: str, extra: Seen) -> None:
        for loose in self.model.loose:
            if extra in loose.candidates.get(name, ()):
                self.model.loose.remove(loose)
                return
        raise AssertionError(f"{name} got {extra}, which nobody sent it")

    @staticmethod
    def seen(packet: Publish) -> Seen:
        pairs = packet.properties.user_properties
        note = value_of(pairs, "$rank")
        if note and packet.topic.startswith("s"):
            note = f"{note} {value_of(pairs, '$distance')}"
        if not packet.topic.startswith("s"):
            note = ""
        ids = packet.properties.subscription_identifiers
        return packet.topic, packet.payload, packet.qos, packet.retain, tuple(sorted(ids)), note

    def check(self) -> None:
        check_matcher(self.world.node.state.selections.matcher)

    def end(self) -> None:
        """Bring everyone back: what waits for them must come."""
        for name, person in list(self.model.people.items()):
            if not person.is_here:
                self.connect(name, False, 60)
        self.compare()
        assert not self.open_cases()

    # --- at random ------------------------------------------------------------------------

    def step(self, rng: Random) -> None:
        """Do something, mostly publish."""
        name = rng.choice(list(NAMES))
        kinds = (
            "publish",
            "subscribe",
            "unsubscribe",
            "move",
            "connect",
            "leave",
            "wait",
            "restart",
        )
        kind = rng.choices(kinds, (40, 18, 6, 18, 10, 4, 2, 1))[0]
        if kind == "publish":
            self.publish_at_random(name, rng)
        elif kind == "subscribe":
            self.subscribe_at_random(name, rng)
        elif kind == "unsubscribe":
            self.unsubscribe(name, rng.randrange(20), rng.randrange(3))
        elif kind == "move":
            self.move(name, rng.choice(PLACES))
        elif kind == "connect":
            self.connect(name, rng.random() < 0.1, rng.choice([0, 60, 60, 60]))
        elif kind == "leave":
            self.leave(name, rng.random() < 0.5)
        elif kind == "wait":
            self.wait(rng.choice([100, 1000]))
        else:
            self.restart()

    def subscribe_at_random(self, name: str, rng: Random) -> None:
        self.subscribe(
            name,
            rng.choice(FILTERS),
            rng.choice([None, *WHERES]),
            rng.choice([None, None, None, *AREAS]),
            rng.choice([None, None, *RADII]),
            rng.choice(["", "", "g"]),
            rng.randrange(3),
            (rng.random() < 0.3, rng.random() < 0.2 and not self.is_plain, rng.random() < 0.5),
            rng.randrange(2),
            rng.choice([1.0, 2.0]),
        )

    def publish_at_random(self, name: str, rng: Random) -> None:
        if self.is_plain and rng.random() < 0.7:
            place, kind = rng.choice([None, *PLACES]), rng.choice([None, "food", "tools"])
            flags = (False, False, False)
            price = rng.choice([0, 3, 5, 9.5])
            self.publish(name, "s/a", price, kind, place, None, 0, flags, None, None, None)
            return
        self.publish(
            name,
            rng.choice(["s/a", "s/a", "s/b", "s", "o"]),
            rng.choice([0, 3, 5, 9.5]),
            rng.choice([None, "food", "tools"]),
            rng.choice([None, *PLACES]),
            rng.choice([None, None, None, *AREAS]),
            rng.randrange(3),
            (rng.random() < 0.3, rng.random() < 0.2, rng.random() < 0.5),
            rng.choice([None, None, 1, 2, 3]),
            rng.choice([None, "narrowest", "nearest", "centre", "weight"]),
            rng.choice([None, None, None, 250, 2000]),
        )


class CrowdMachine(RuleBasedStateMachine):
    make_world: Any = None

    @initialize(offline=st.sampled_from(["counts", "skipped"]))
    def begin(self, offline: str) -> None:
        self.crowd = Crowd(self.make_world, offline)

    @rule(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=8))
    def act(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.crowd.step(Random(seed))

    @rule(name=st.sampled_from(list(NAMES)), seed=st.integers(0, 2**32))
    def publish(self, name: str, seed: int) -> None:
        self.crowd.publish_at_random(name, Random(seed))

    @rule(name=st.sampled_from(list(NAMES)), place=st.sampled_from(PLACES))
    def move(self, name: str, place: tuple[float, float]) -> None:
        self.crowd.move(name, place)

    @invariant()
    def the_matcher_is_in_order(self) -> None:
        if hasattr(self, "crowd"):
            self.crowd.check()

    def teardown(self) -> None:
        if hasattr(self, "crowd"):
            self.crowd.end()


def test_a_crowd_gets_what_the_definitions_say(make_world: Any) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    class Machine(CrowdMachine):
        pass

    Machine.make_world = staticmethod(make_world)
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=12))


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_gets_it_over_a_long_time_too(make_world: Any, seed: int) -> None:
    rng = Random(seed)
    crowd = Crowd(make_world, ("counts", "skipped")[seed % 2], is_plain=seed == 2)
    for number in range(1_000):
        crowd.step(rng)
        if number % 300 == 0:
            crowd.check()
    crowd.end()
