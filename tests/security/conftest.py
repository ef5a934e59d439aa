"""The world of clients around one node, as the tests of the broker have it."""

from __future__ import annotations

from tests.broker.conftest import make_world, shops, world

__all__ = ["make_world", "shops", "world"]
