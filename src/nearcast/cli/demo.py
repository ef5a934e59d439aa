"""`nearcast demo`: what there is, shown on a small city of shops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.cli.terminal import JSON, console, print_json

if TYPE_CHECKING:
    from nearcast.model import Event, Subscription

_SUBSCRIPTIONS = (
    ("ann", "cheap food", "price < 10 and kind = food", "", None),
    ("ben", "food or books within 400 m of me", "kind in (food, books)", "", (-122.4080, 37.7870)),
    ("cem", "anything around Union Square", "", "circle(-122.4075,37.7880,300m)", None),
    ("dee", "tools from 20 to 50", "20 <= price <= 50 and kind = tools", "", None),
    ("eva", "anything downtown", "", "bbox(-122.42,37.77,-122.39,37.80)", None),
)
_NEAR_M = 400.0
_EVENTS = (
    ("bakery", {"price": 4.5, "kind": "food", "lon": -122.4079, "lat": 37.7875}),
    ("hardware", {"price": 35, "kind": "tools", "lon": -122.4310, "lat": 37.7690}),
    ("bookshop", {"price": 18, "kind": "books", "lon": -122.4045, "lat": 37.7862}),
    ("airport kiosk", {"price": 9.5, "kind": "food", "lon": -122.3860, "lat": 37.6160}),
)


def demo(*, json: bool = JSON) -> None:
    """Show what Nearcast does at this stage: who is near which event, and how precisely.

    Example: nearcast demo
    """
    rows = matches()
    if json:
        print_json(rows)
        return
    _print_subscriptions()
    _print_matches(rows)


def subscriptions() -> dict[str, tuple[Subscription, tuple[float, float] | None]]:
    """Return the demo's subscriptions by subscriber, with the place of who asked for `$near`."""
    from nearcast.model import Subscription, parse_shape, parse_where

    return {
        name: (
            Subscription(
                topic_filter="shops/#",
                where=parse_where(where) if where else None,
                area=parse_shape(area) if area else None,
                near_m=_NEAR_M if place else None,
            ),
            place,
        )
        for name, _, where, area, place in _SUBSCRIPTIONS
    }


def events() -> dict[str, Event]:
    """Return the demo's events by shop, in the space that `nearcast init` declares."""
    from nearcast.config import EXAMPLE, read
    from nearcast.model import Event

    configuration = read(EXAMPLE, {}).configuration
    assert configuration is not None
    space = configuration.space[0].to_space()
    return {shop: Event.of(space, f"shops/{shop}", values) for shop, values in _EVENTS}


def matches() -> list[dict[str, object]]:
    """Return, for each event, who gets it, the most precise subscription first."""
    rows: list[dict[str, object]] = []
    for shop, event in events().items():
        found = []
        for name, (subscription, place) in subscriptions().items():
            if subscription.covers(event, place):
                boxes = subscription.boxes(event.space, place)
                found.append((event.space.accuracy(boxes, event.boxes()) or 0.0, name))
        rows.append({"event": shop, "to": [{"who": n, "accuracy": a} for a, n in sorted(found)]})
    return rows


def _print_subscriptions() -> None:
    from rich.table import Table

    table = Table(
        title="Who asked for what (the filter any MQTT client can send)", title_justify="left"
    )
    table.add_column("who")
    table.add_column("wants")
    table.add_column("as a topic filter", overflow="fold")
    wishes = subscriptions()
    for name, wish, *_ in _SUBSCRIPTIONS:
        table.add_row(name, wish, wishes[name][0].identity)
    console().print(table)


def _print_matches(rows: list[dict[str, object]]) -> None:
    from rich.table import Table

    table = Table(title="Who gets which event, narrowest wish first", title_justify="left")
    for heading in ("event", "gets it (accuracy in bits: less is narrower)"):
        table.add_column(heading)
    for row in rows:
        receivers = row["to"]
        assert isinstance(receivers, list)
        told = ", ".join(f"{each['who']} ({each['accuracy']:.1f})" for each in receivers)
        table.add_row(str(row["event"]), told or "nobody")
    console().print(table)
