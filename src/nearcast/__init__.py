"""Nearcast: publish/subscribe for things that move.

Start reading at `nearcast.model`, the vocabulary; `docs/architecture.md` shows how the packages
build on each other.
"""

__version__ = "0.1.0"

from nearcast.compiled_core import use as _use_compiled_core

_use_compiled_core()
