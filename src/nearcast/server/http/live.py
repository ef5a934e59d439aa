"""What moves on the map, as messages below `$nearcast/live`, while somebody subscribes to them.

    $nearcast/live/positions/<node>    {"t", "full", "moved": [[client, lon, lat], …], "gone": […]}
    $nearcast/live/deliveries/<node>   {"t", "events": […], "left_out"}
    $nearcast/live/log/<node>          [{"t", "level", "logger", "text"}, …]
    $nearcast/live/figures/<node>      {"figures": as /api/overview, "node": as in /api/nodes}

Twice a second there is a frame of what has changed since the last one; figures come every two
seconds. Without a subscriber the broker reports nothing to this class, and twice a second it looks
whether there is one. A position costs one entry of a set; a client that moves several times
between two frames is in the next one once. Of the events, ten are shown in a frame, and the others
counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from itertools import islice
from typing import Any

import msgspec

from nearcast.broker import Broker, Session
from nearcast.broker.publish.routes import LIVE_TOPICS
from nearcast.model import Event
from nearcast.server.http.geometry import geometry_of
from nearcast.server.http.log_tail import LogTail
from nearcast.server.loop_batches import LoopBatches

FRAME_S = 0.5
_FIGURES_EVERY = 4  # frames
_MOST_EVENTS = 10
_MOST_RECEIVERS = 50
_MOST_FULL = 20_000
_FULL_EVERY = 60  # frames: who has begun to look meanwhile, or missed one, has everybody by then
_SHOWN_PAYLOAD = 200
_MOST_LINES = 100


class LiveFeed:
    """Publishes frames of positions, deliveries and log lines."""

    def __init__(
        self,
        node: Broker,
        turns: LoopBatches,
        tail: LogTail,
        name: str,
        shows_positions: Callable[[], bool],
    ) -> None:
        self._node, self._turns, self._tail = node, turns, tail
        self._topics = {
            one: f"{LIVE_TOPICS}/{one}/{name}"
            for one in ("positions", "deliveries", "log", "figures")
        }
        self.figures: Callable[[], Awaitable[object]] | None = None
        self._ticks = 0
        self._asking: asyncio.Task[None] | None = None
        self._shows_positions = shows_positions
        self._alarm: asyncio.TimerHandle | None = None
        self._is_watching = False
        self._until_full = 0  # frames; 0: nobody has watched positions before this one
        self._has_map = self._has_events = False
        self._moved: set[Session] = set()
        self.moved: Callable[[Session], None] = self._moved.add
        """Puts a client into the next frame: of all that is done for a page, this is done most."""
        self._gone: dict[Session, None] = {}
        self._events: list[dict[str, Any]] = []
        self._left_out = 0
        self._lines_shown = 0

    def start(self) -> None:
        """Look for subscribers from now on."""
        self._alarm = asyncio.get_running_loop().call_later(FRAME_S, self._tick)

    def stop(self) -> None:
        """Publish nothing more."""
        self._node.inspection.watch_with(None)
        if self._alarm is not None:
            self._alarm.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _tick(self) -> None:
        self.start()
        try:
            self._publish_frames()
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._node.failures.take("publishing what moves on the map", error)

    def _publish_frames(self) -> None:
        wants, topics = self._node.inspection.wants, self._topics
        self._ticks += 1
        if not self._ticks % _FIGURES_EVERY and wants(topics["figures"]):
            self._publish_figures()
        may_show = self._shows_positions()
        self._has_map = may_show and wants(topics["positions"])
        self._has_events = may_show and wants(topics["deliveries"])
        has_log = wants(topics["log"])
        self._watch(is_watching=self._has_map or self._has_events)
        if not (self._is_watching or has_log):
            self._until_full, self._lines_shown = 0, self._tail.count
            return
        if self._has_map:
            self._publish_positions()
        else:
            self._until_full = 0
        if self._has_events and (self._events or self._left_out):
            self._publish_events()
        if has_log:
            self._publish_lines()
        else:
            self._lines_shown = self._tail.count
        self._turns.schedule()

    def _watch(self, *, is_watching: bool) -> None:
        if is_watching != self._is_watching:
            self._is_watching = is_watching
            self._node.inspection.watch_with(self if is_watching else None)
            self._moved.clear()
            self._gone = {}
            self._events, self._left_out = [], 0

    def _publish_positions(self) -> None:
        moved: Collection[Session] = [one for one in self._moved if not one.is_onlooker]
        self._moved.clear()
        gone, self._gone = self._gone, {}
        is_full = self._until_full <= 0
        self._until_full = _FULL_EVERY if is_full else self._until_full - 1
        if is_full:
            sessions = self._node.client_sessions()
            present = (one for one in sessions if one.link and not one.is_onlooker)
            moved = list(islice(present, _MOST_FULL))
            gone = {}
        elif not (moved or gone):
            return
        rows = [
            (one.client_id, place[0], place[1])
            for one in moved
            if (place := one.position) is not None and one.link is not None
        ]
        frame = {
            "t": self._turns.clock.now_ms(),
            "full": is_full,
            "moved": rows,
            "gone": [one.client_id for one in gone if one.link is None],
        }
        self._send("positions", frame)

    def _publish_events(self) -> None:
        events, self._events = self._events, []
        left_out, self._left_out = self._left_out, 0
        now_ms = self._turns.clock.now_ms()
        self._send("deliveries", {"t": now_ms, "events": events, "left_out": left_out})

    def _publish_figures(self) -> None:
        """Collect the figures beside the traffic of clients, and publish them."""
        if self.figures is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask(self.figures))

    async def _ask(self, figures: Callable[[], Awaitable[object]]) -> None:
        try:
            self._send("figures", await figures())
            self._turns.schedule()
        except Exception as error:  # noqa: BLE001 - a mistake of ours
            self._node.failures.take("publishing the figures of this node", error)

    def _publish_lines(self) -> None:
        lines = self._tail.since(self._lines_shown)[-_MOST_LINES:]
        self._lines_shown = self._tail.count
        if lines:
            self._send("log", lines)

    def _send(self, kind: str, document: object) -> None:
        payload, now_ms = msgspec.json.encode(document), self._turns.clock.now_ms()
        self._node.publish(self._topics[kind], payload, now_ms=now_ms)

    # --- what the broker reports ------------------------------------------------------------

    def present(self, session: Session, /) -> None:
        """Put a client that has come or gone into the next frame."""
        if session.is_onlooker:
            return
        if session.link is None:
            self._gone[session] = None
        elif session.position is not None:
            self._moved.add(session)

    def wants_event(self) -> bool:
        """Return whether there is room for an event in the next frame; else count it."""
        if self._has_events and len(self._events) < _MOST_EVENTS:
            return True
        self._left_out += self._has_events
        return False

    def event(
        self,
        topic: str,
        payload: bytes,
        publisher: Session | None,
        event: Event | None,
        receivers: Collection[Session],
        chosen: int,
        /,
    ) -> None:
        """Put an event with a place into the next frame."""
        place = None if event is None else event.position
        area = None if event is None else geometry_of(event.area)
        if place is None and area is None:
            return
        own = [one for one in receivers if not (one.is_peer or one.is_onlooker)]
        self._events.append(
            {
                "topic": topic,
                "publisher": None
                if publisher is None or publisher.is_peer
                else publisher.client_id,
                "lon": None if place is None else place[0],
                "lat": None if place is None else place[1],
                "area": area,
                "to": [one.client_id for one in own[:_MOST_RECEIVERS]],
                "matched": len(own),
                "chosen": chosen,
                "payload": payload[: 4 * _SHOWN_PAYLOAD].decode("utf-8", "replace")[
                    :_SHOWN_PAYLOAD
                ],
            }
        )
