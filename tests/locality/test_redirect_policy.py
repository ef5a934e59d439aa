"""Which clients are offered another node, against the definition by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

from hypothesis import given
from hypothesis import strategies as st

from nearcast.locality.registration.redirect_policy import RedirectPolicy, RedirectRules

RULES = RedirectRules(crossings_per_min=3.3, dwell_ms=7_000, offers_per_min=2, pause_ms=50_000)
CLIENTS, NODES, PLACES = ("ann", "bob"), ("here", "x", "y"), ("here", "x", "y", None)


@dataclass
class Definition:
    """All that happened, and what follows from it, worked out from the beginning each time."""

    messages: list[tuple[str, str, int]] = field(default_factory=list)
    watches: list[tuple[int, dict[str, str | None]]] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    offers: list[int] = field(default_factory=list)

    def counts(self, client: str, now: int) -> dict[str, float]:
        mine = [(node, at) for one, node, at in self.messages if one == client and at <= now]
        return {
            node: sum(exp((at - now) / 60_000) for other, at in mine if other == node)
            for node in NODES
        }

    def near(self, client: str) -> tuple[str, int] | None:
        """Return the node that is near a client after all watches, and since when."""
        found: tuple[str, int] | None = None
        for now, places in self.watches:
            counts, place = self.counts(client, now), places[client]
            total = sum(counts.values())
            if found is not None:
                count = counts[found[0]]
                is_here = place is None or place == found[0]
                if not (is_here and count >= 3.3 / 2 and count >= total / 2):
                    found = None
            if found is None:
                for node in ("x", "y"):
                    is_here = place is None or place == node
                    if is_here and counts[node] >= 3.3 and counts[node] >= 0.6 * total:
                        found = (node, now)
        return found

    def ready(self, now: int) -> list[tuple[str, str, int]]:
        out = []
        for client in CLIENTS:
            near = self.near(client)
            is_asked = any(one == client and at + 50_000 > now for one, at in self.asked)
            if near is not None and now - near[1] >= 7_000 and not is_asked:
                out.append((client, near[0], near[1] + 7_000))
        return sorted(out, key=lambda one: (one[2], one[0]))

    def has_room(self, now: int) -> bool:
        return sum(at + 60_000 > now for at in self.offers) < 2


a_message = st.tuples(
    st.just("message"), st.sampled_from(CLIENTS), st.sampled_from(("x", "x", "x", "here", "y"))
)
a_watch = st.tuples(
    st.just("watch"),
    st.sampled_from(("x", "x", "x", "y", "here", None)),
    st.sampled_from(PLACES),
)
an_offer = st.tuples(st.just("offer"), st.sampled_from(CLIENTS), st.booleans())
a_wait = st.tuples(st.just("wait"), st.sampled_from((1, 900, 3_000, 3_500, 20_000)), st.none())
a_burst = st.tuples(st.just("burst"), st.sampled_from(CLIENTS), st.sampled_from(NODES))


@given(st.lists(st.one_of(a_message, a_burst, a_watch, a_watch, an_offer, a_wait), max_size=40))
def test_clients_are_ready_as_defined(history):
    policy, truth, now = RedirectPolicy("here", RULES), Definition(), 1_000
    for kind, first, second in history:
        if kind == "wait":
            now += first
        elif kind in ("message", "burst"):
            for _ in range(5 if kind == "burst" else 1):
                truth.messages.append((first, second, now))
                policy.crossed(first, second, now)
        elif kind == "watch":
            places = {"ann": first, "bob": second}
            truth.watches.append((now, places))
            policy.watch(places.__getitem__, now)
        else:
            truth.asked.append((first, now))
            if second:
                truth.offers.append(now)
                policy.offered(first, now)
            else:
                policy.asked(first, now)
        assert policy.ready(now) == truth.ready(now)
        assert policy.has_room(now) == truth.has_room(now)


def rates(policy: RedirectPolicy, per_min: int, minutes: int, start: int = 0) -> int:
    """Let a client have so many messages a minute with x, watched every second; return the end."""
    for second in range(minutes * 60):
        now = start + second * 1_000
        if second * per_min % 60 < per_min:
            policy.crossed("ann", "x", now)
        policy.watch(lambda _: "x", now)
    return start + minutes * 60_000


def test_a_count_is_a_rate_per_minute():
    rules = RedirectRules(crossings_per_min=6, dwell_ms=120_000)
    often, seldom = RedirectPolicy("here", rules), RedirectPolicy("here", rules)
    end = rates(often, 10, 10)
    assert [one[:2] for one in often.ready(end)] == [("ann", "x")]
    assert rates(seldom, 4, 10) == end
    assert seldom.ready(end) == []


def test_a_client_is_asked_once_an_hour():
    policy = RedirectPolicy("here", RedirectRules(crossings_per_min=6, dwell_ms=60_000))
    now = rates(policy, 20, 5)
    policy.offered("ann", now)
    hour = now + 3_600_000
    assert policy.ready(now) == []
    rates(policy, 20, 60, start=now)
    policy.watch(lambda _: "x", hour - 1)
    assert policy.ready(hour - 1) == []
    assert [one[0] for one in policy.ready(hour)] == ["ann"]


def test_a_node_has_room_for_offers_again_a_minute_later():
    policy = RedirectPolicy("here", RedirectRules(offers_per_min=2))
    for now in (0, 1_000):
        assert policy.has_room(now)
        policy.offered(f"client {now}", now)
    assert [policy.has_room(now) for now in (1_000, 59_999, 60_000)] == [False, False, True]
    policy.offered("third", 60_000)
    assert [policy.has_room(now) for now in (60_999, 61_000)] == [False, True]


def test_what_fades_is_forgotten():
    policy = RedirectPolicy("here", RULES)
    policy.crossed("ann", "x", 0)
    policy.watch(lambda _: None, 1_000)
    assert len(policy) == 1
    policy.watch(lambda _: None, 600_000)
    assert len(policy) == 0
    policy.crossed("ann", "x", 600_000)
    policy.forget("ann")
    assert len(policy) == 0
