"""Small tables for the library of Spark: tracks of a made-up town, events and subscriptions."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from nearcast.matching import Matcher
from nearcast.model import Attribute, Event, Space, Subscription, parse_where

SPACE = Space(
    name="town",
    topic_filter="town/#",
    attributes=(Attribute.number("lon", 0, 100), Attribute.number("lat", 0, 90)),
    longitude="lon",
    latitude="lat",
)
_CHANCE = random.Random(7)
EVENTS = [
    {"event_id": n, "lon": _CHANCE.uniform(0, 100), "lat": _CHANCE.uniform(0, 90)}
    for n in range(60)
]
WISHES = [
    {"subscription_id": n, "where": f"lon >= {_CHANCE.uniform(0, 60):.3f} and lat < {20 + n * 3}"}
    for n in range(20)
]


def expected_pairs() -> set[tuple[object, object]]:
    """Return who gets which event, by the definition."""
    matcher = Matcher([SPACE])
    for wish in WISHES:
        subscription = Subscription(topic_filter="town/#", where=parse_where(str(wish["where"])))
        matcher.add(int(str(wish["subscription_id"])), subscription)
    return {
        (event["event_id"], key)
        for event in EVENTS
        for key in matcher.match(
            Event.of(SPACE, "town/x", {name: event[name] for name in ("lon", "lat")})
        )
    }


def fixes(users: int = 12, steps: int = 120, seed: int = 1) -> pa.Table:
    """Return GPS fixes of a town: users drive, and wait long at one of two places; some are bad."""
    chance = random.Random(seed)
    begun = datetime(2026, 3, 2, 8, tzinfo=UTC)
    rows = []
    for user in range(users):
        lon, lat = 8.50 + chance.uniform(0, 0.05), 47.30 + chance.uniform(0, 0.05)
        stop = (8.52, 47.32) if user % 2 else (8.54, 47.34)
        for step in range(steps):
            if step % 40 < 15:
                lon, lat = stop[0] + chance.gauss(0, 2e-4), stop[1] + chance.gauss(0, 2e-4)
            else:
                lon, lat = lon + chance.gauss(0, 2e-3), lat + chance.gauss(0, 2e-3)
            at = begun + timedelta(seconds=30 * step + user)
            rows.append({"user_id": f"u{user}", "t": at.isoformat(), "lon": lon, "lat": lat})
    rows[5] = {**rows[5], "t": None}
    rows[9] = {**rows[9], "lon": 99.0, "lat": 10.0}
    return pa.Table.from_pylist(rows)
