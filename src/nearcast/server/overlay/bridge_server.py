"""A node of a network that is a bridge to an overlay (`nearcast peer` with `[network] join`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nearcast.config import Configuration
from nearcast.server.broker_settings import space_settings
from nearcast.server.overlay.bridge import Bridge
from nearcast.server.overlay.peer_server import check_configuration, overlay_spaces, peer_settings
from nearcast.server.overlay.runtime import OverlayRuntime
from nearcast.server.server import Server


class BridgeServer(Server):
    """A node that joins the network first, then the overlay, before clients connect."""

    def __init__(self, configuration: Configuration) -> None:
        check_configuration(configuration)
        super().__init__(configuration)
        self.bridge: Bridge | None = None
        self.runtime: OverlayRuntime | None = None
        self._tending: asyncio.Task[None] | None = None

    def _make_mesh(self) -> None:
        super()._make_mesh()
        assert self._mesh is not None
        self._mesh.bridging.become_bridge(self.configuration.peer.federation)

    def _kernel_parts(self) -> list[str]:
        return [*super()._kernel_parts(), "overlay"]

    async def _join_network(self) -> None:
        await super()._join_network()
        mesh, turns, section = self._mesh, self.turns, self.configuration.peer
        assert mesh is not None
        assert turns is not None
        settings = [space_settings(one) for one in self.configuration.space]
        bridge = Bridge(
            self.node,
            mesh.bridging,
            turns,
            settings,
            most_boxes=section.boxes,
            looseness=section.looseness,
        )
        self.runtime = OverlayRuntime(
            peer_settings(section), overlay_spaces(self.configuration), bridge.arrived
        )
        await self.runtime.start()
        bridge.attach(self.runtime)
        assert turns.on_taken is not None
        turns.on_taken = partial(_both, turns.on_taken, bridge.settle)
        self.bridge = bridge
        self._tending = asyncio.create_task(self._tend(bridge, section.beat))

    async def _tend(self, bridge: Bridge, beat_s: float) -> None:
        while True:
            await asyncio.sleep(beat_s)
            bridge.tend()

    async def stop(self) -> None:
        """Leave the overlay, then the network."""
        if self._tending is not None:
            self._tending.cancel()
        if self.bridge is not None:
            self.bridge.detach()
        if self.runtime is not None:
            await self.runtime.stop()
            self.runtime = None
        await super().stop()


def _both(first: Callable[[], None], second: Callable[[], None]) -> None:
    second()
    first()
