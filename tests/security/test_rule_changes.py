"""Random users, rules, reloads, crashes and sessions beside a brute-force model.

The model knows nothing of filters: a filter is the set of topics that it matches, of a small world.
A rule covers a filter if it matches all of its topics, and overlaps it if it matches some.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from tests.support.rules import KnownUsers, Rule, allow

from nearcast.mqtt import Connack

TOPICS = ("a", "b", "c", "a/a", "a/b", "a/c", "b/a", "b/c", "c/a", "c/c", "a/b/c", "c/c/c")
PUBLISHED = ("a", "b", "a/a", "a/b", "b/a")
FILTERS = ("a", "b", "a/a", "a/b", "a/+", "+/a", "a/#", "b/#", "+", "#")
USERS = ("ann", "bob", None)
CLIENTS = ("one", "two")
KEPT = {"session_expiry_interval": 100_000}


def matched(topic_filter: str) -> frozenset[str]:
    """Return the topics of the world that a filter matches: the definition of MQTT."""

    def matches(levels: list[str], wanted: list[str]) -> bool:
        if wanted == ["#"]:
            return True
        if not levels or not wanted:
            return not levels and wanted in ([], ["#"])
        return wanted[0] in ("+", levels[0]) and matches(levels[1:], wanted[1:])

    return frozenset(one for one in TOPICS if matches(one.split("/"), topic_filter.split("/")))


def may_read(rules: list[Rule], user: str | None, wanted: frozenset[str]) -> bool:
    """Return whether the first rule that decides allows all of these topics."""
    for name, action, topic, allows in rules:
        if name not in ("*", user) or action == "publish":
            continue
        covered = matched(topic.replace("%u", user or "-"))
        if "%u" in topic and user is None:
            continue
        if wanted <= covered:
            return allows
        if not allows and wanted & covered:
            return False
    return not rules


@dataclass
class Kept:
    """A session as the model has it."""

    owner: str | None
    filters: set[str] = field(default_factory=set)
    queue: list[tuple[str, bytes]] = field(default_factory=list)
    client: Any = None


class Model:
    """What every session must have, and get."""

    def __init__(self, users: set[str], rules: list[Rule]) -> None:
        self.users, self.rules = users, rules
        self.sessions: dict[str, Kept] = {}

    def check(self, session: Kept) -> None:
        may = lambda wanted: may_read(self.rules, session.owner, matched(wanted))  # noqa: E731
        session.filters = {one for one in session.filters if may(one)}
        session.queue = [one for one in session.queue if may(one[0])]

    def change(self, users: set[str], rules: list[Rule]) -> None:
        self.users, self.rules = users, rules
        for name, session in list(self.sessions.items()):
            if session.owner is not None and session.owner not in users:
                del self.sessions[name]
            else:
                self.check(session)

    def publish(self, topic: str, payload: bytes) -> None:
        for session in self.sessions.values():
            if any(topic in matched(one) for one in session.filters):
                session.queue.append((topic, payload))


def random_rules(random: Random) -> list[Rule]:
    """Return rules of which the first lets the writer publish, and the reader's be any."""
    topics = (*FILTERS, "a/%u", "%u/#")
    rules = [
        (
            random.choice(["ann", "bob", "*"]),
            random.choice(["subscribe", "both"]),
            random.choice(topics),
            random.random() < 0.6,
        )
        for _ in range(random.randrange(5))
    ]
    return [allow("#", "*", "publish"), *rules]


class Run:
    """A broker and the model, and a step at a time for both."""

    def __init__(self, make_world: Any, seed: int) -> None:
        self.random = Random(seed)
        users, rules = {"ann", "bob", "w"}, random_rules(self.random)
        self.model = Model(users, rules)
        self.world = make_world(access=KnownUsers(users, rules), with_journal=True)
        self.number = 0

    def step(self) -> None:
        steps = (self.connect, self.lose, self.subscribe, self.publish, self.publish, self.reload)
        self.random.choice(steps)()
        if self.random.random() < 0.05:
            self.restart()
        self.compare()

    def connect(self) -> None:
        name, user = self.random.choice(CLIENTS), self.random.choice(USERS)
        kept = self.model.sessions.get(name)
        client = self.world.client(name, user_name=user, clean_start=False, props=KEPT)
        reason = next(one.reason for one in client.packets if isinstance(one, Connack))
        if user is not None and user not in self.model.users:
            assert reason == 0x86
        elif kept is not None and kept.owner not in (None, user):
            assert reason == 0x85
        else:
            assert reason == 0
            kept = self.model.sessions.setdefault(name, Kept(user))
            kept.owner, kept.client = user, client
            self.model.check(kept)

    def lose(self) -> None:
        for kept in self.model.sessions.values():
            if kept.client is not None and self.random.random() < 0.5:
                kept.client.lose()
                kept.client = None

    def subscribe(self) -> None:
        for kept in self.model.sessions.values():
            if kept.client is not None:
                wanted = self.random.choice(FILTERS)
                kept.client.subscribe(wanted, 1)
                if may_read(self.model.rules, kept.owner, matched(wanted)):
                    kept.filters.add(wanted)

    def publish(self) -> None:
        self.number += 1
        topic, payload = self.random.choice(PUBLISHED), b"%d" % self.number
        self.world.welcome("w", user_name="w").publish(topic, payload, qos=1)
        self.model.publish(topic, payload)

    def reload(self) -> None:
        access = self.changed()
        if self.random.random() < 0.5:
            self.in_slices(access)
        else:
            self.world.node.set_access(access, self.world.now_ms)
        self.world.settle()

    def changed(self) -> KnownUsers:
        users = {one for one in ("ann", "bob") if self.random.random() < 0.85} | {"w"}
        rules = random_rules(self.random)
        self.model.change(users, rules)
        return KnownUsers(users, rules)

    def in_slices(self, access: KnownUsers) -> None:
        """Let something else happen between the slices: a client comes or goes."""
        slices = self.world.node.slices
        slices.is_spent = lambda: True
        self.world.node.set_access(access, self.world.now_ms)
        for _ in range(self.random.randrange(4)):
            if slices.backlog:
                self.world.node.serve_backlog(self.world.now_ms)
        slices.is_spent = lambda: False
        self.random.choice((self.connect, self.lose))()
        while slices.backlog:
            self.world.node.serve_backlog(self.world.now_ms)

    def restart(self) -> None:
        self.compare()
        self.world.options["access"] = self.changed()
        self.world.crash_and_restart()
        for kept in self.model.sessions.values():
            kept.client = None

    def compare(self) -> None:
        sessions = self.world.node.state.sessions
        assert set(sessions) - {"w"} == set(self.model.sessions)
        for name, kept in self.model.sessions.items():
            assert set(sessions[name].subscriptions) == kept.filters
            assert sessions[name].user_name == kept.owner
            if kept.client is not None:
                assert kept.client.payloads() == [payload for _, payload in kept.queue]
                kept.queue.clear()


@pytest.mark.parametrize("seed", range(25))
def test_everybody_gets_what_the_rules_allow_and_nothing_else(make_world: Any, seed: int) -> None:
    run = Run(make_world, seed)
    for _ in range(60):
        run.step()
