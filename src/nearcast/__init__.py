"""Nearcast: publish/subscribe for things that move.

Start reading at `nearcast.model`, the vocabulary; `docs/architecture.md` shows how the packages
build on each other.
"""

__version__ = "0.1.0"
