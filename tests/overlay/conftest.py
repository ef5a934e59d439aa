"""A small world for overlay tests, and the oracle: who should get an event."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from nearcast.overlay import Bounds, Climb, Extent, Method, OverlayEvent, Placement, Settings, Split
from nearcast.papers.content_overlay.world import SimulatedOverlay
from nearcast.simulator import SimulatedLink, uniform

SQUARE = Extent((0.0, 0.0), (100.0, 100.0))


class OverlayTown:
    """An overlay in a simulated world, beside a plain list of who subscribed to what."""

    def __init__(
        self, seed: int = 1, link: SimulatedLink | None = None, **settings: object
    ) -> None:
        given = {"extent": SQUARE, "least": 2, "most": 3} | settings
        self.settings = Settings(**given)  # type: ignore[arg-type]
        self.net = SimulatedOverlay(self.settings, seed, link or SimulatedLink(uniform(1, 20)))
        self.boxes: dict[str, Bounds] = {}
        self.random = Random(seed)
        self.published = 0
        self.joined = 0

    def join(self, lows: tuple[float, ...], highs: tuple[float, ...], name: str = "") -> str:
        name = name or f"p{self.joined}"
        self.joined += 1
        contacts = self.random.sample(sorted(self.boxes), min(2, len(self.boxes)))
        self.net.add(name, contacts)
        self.net.subscribe(name, lows, highs)
        self.boxes[name] = (tuple(map(float, lows)), tuple(map(float, highs)))
        return name

    def change(self, name: str, lows: tuple[float, ...], highs: tuple[float, ...]) -> None:
        self.net.change(name, lows, highs)
        self.boxes[name] = (tuple(map(float, lows)), tuple(map(float, highs)))

    def leave(self, name: str) -> None:
        del self.boxes[name]
        self.net.leave(name)

    def crash(self, name: str) -> None:
        del self.boxes[name]
        self.net.crash(name)

    def meant(self, lows: tuple[float, ...], highs: tuple[float, ...]) -> list[str]:
        """Oracle, from the definition: the two boxes share a point."""
        return sorted(
            name
            for name, (box_lows, box_highs) in self.boxes.items()
            if all(
                low <= box_high and box_low <= high
                for low, high, box_low, box_high in zip(
                    lows, highs, box_lows, box_highs, strict=True
                )
            )
        )

    def publish(
        self, name: str, lows: tuple[float, ...], highs: tuple[float, ...] | None = None
    ) -> tuple[list[str], list[str]]:
        """Publish, wait, and return who got the event (with repetitions) and who should have."""
        self.published += 1
        event = OverlayEvent(
            ("event", self.published), tuple(map(float, lows)), tuple(map(float, highs or lows))
        )
        self.net.publish(name, [event])
        self.net.run(1_500)
        got = sorted(self.net.delivered.get(event.event_id, []))
        return got, self.meant(event.lows, event.highs)

    def calm(self) -> None:
        """End all faults; whoever knows nobody that lives is told of one."""
        self.net.world.network.heal()
        self.net.world.network.link = SimulatedLink(uniform(1, 20))
        for name, peer in self.net.peers.items():
            others = [other for other in sorted(self.boxes) if other != name]
            if others and not any(contact.peer in self.boxes for contact in peer.contacts):
                peer.meet([self.random.choice(others)])


@pytest.fixture
def make_town() -> Callable[..., OverlayTown]:
    return OverlayTown


def drawn_settings(random: Random) -> dict[str, object]:
    least, most = random.choice([(2, 3), (2, 3), (2, 4), (3, 6)])
    return {
        "least": least,
        "most": most,
        "method": random.choice(list(Method)),
        "split": random.choice(list(Split)),
        "climb": random.choice(list(Climb)),
        "placement": random.choice(list(Placement)),
        "coalesce_ms": random.choice([0, 0, 20]),
        "cache_size": random.choice([0, 0, 50]),
    }


@pytest.fixture
def draw_settings() -> Callable[[Random], dict[str, object]]:
    return drawn_settings
