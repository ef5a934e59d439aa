"""`nearcast demo`: what there is, shown on a small city of shops."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from subprocess import PIPE, Popen
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
    """Show what Nearcast does at this stage: matching, ranked, at scale; a broker that survives.

    Example: nearcast demo
    """
    rows = matches()
    if json:
        print_json({"matches": rows, "crowd": crowd(), "broker": survival()})
        return
    _print_subscriptions()
    _print_matches(rows)
    say = console().print
    say("\n[bold]A crowd[/]: 100,000 areas of interest (kernels are compiled the first time) ...")
    figures = crowd()
    say(
        f"one event finds its {figures['matches']:.0f} matches in {figures['index_us']:.1f} µs; "
        f"looking at every area with NumPy takes {figures['scan_us']:,.0f} µs"
    )
    say("\n[bold]A broker[/] on this machine, killed with kill -9 and started again ...")
    found = survival()
    say(f"what waited for an absent subscriber: {found['queued']}; retained: {found['retained']}")
    say("\nNext: nearcast serve, and the README's tour")


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


def crowd(count: int = 100_000) -> dict[str, float]:
    """Time one event against many areas, beside a scan of all of them."""
    import time

    import numpy as np

    from nearcast.index import BoxIndex

    rng = np.random.default_rng(0)
    side = (9 / count) ** 0.5
    lows = rng.random((count, 2))
    index = BoxIndex.from_arrays(np.arange(count), lows, lows + side)
    points = rng.random((1_000, 2))
    found = sum(len(index.match(point)) for point in points)
    begun = time.perf_counter()
    for point in points:
        index.match(point)
    middle = time.perf_counter()
    for point in points[:20]:
        np.flatnonzero(((lows <= point) & (point <= lows + side)).all(axis=1))
    ended = time.perf_counter()
    return {
        "matches": found / len(points),
        "index_us": (middle - begun) / len(points) * 1e6,
        "scan_us": (ended - middle) / 20 * 1e6,
    }


def survival() -> dict[str, str]:
    """Kill a broker with `kill -9`, start it again, and return what it still has."""
    from tempfile import TemporaryDirectory

    from nearcast.mqtt import FilterRequest, Publish
    from nearcast.server import Client, Target

    with TemporaryDirectory(prefix="nearcast-demo-") as folder:
        broker, port = _start_broker(folder)
        absent = Target(port=port, client_id="ann", clean_start=False, session_expiry_s=600)
        with Client(absent) as ann:
            ann.subscribe(FilterRequest("shops/#", 1))
        with Client(Target(port=port)) as shop:
            shop.publish([Publish("shops/bakery", b"fresh bread", qos=1)])
            shop.publish([Publish("shops/sign", b"open", qos=1, retain=True)])
        broker.kill()
        broker.wait()
        broker, port = _start_broker(folder)
        with Client(replace(absent, port=port)) as ann:
            queued = [message.payload.decode() for message in ann.messages(0.5)]
        with Client(Target(port=port)) as newcomer:
            newcomer.subscribe(FilterRequest("shops/#"))
            retained = [message.payload.decode() for message in newcomer.messages(0.5)]
        broker.terminate()
        broker.wait()
    return {"queued": ", ".join(queued), "retained": ", ".join(retained)}


def _start_broker(folder: str) -> tuple[Popen[str], int]:
    """Start `nearcast serve` on a free port; return the process and the port."""
    code = "from nearcast.cli import main; main()"
    arguments = ["serve", "--port", "0", "--data", f"{folder}/data"]
    command = [sys.executable, "-c", code, *arguments]
    environ = {**os.environ, "NEARCAST_LOG__LEVEL": "error"}
    broker = Popen(command, stdout=PIPE, text=True, env=environ)  # noqa: S603 - our own command
    assert broker.stdout is not None
    first = broker.stdout.readline()
    return broker, int(first.rsplit(":", 1)[1])


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
