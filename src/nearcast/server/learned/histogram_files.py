"""Event histograms made by the pipeline; they guide how a node's boxes are merged for its peers.

A node's own files have precedence, space by space, then the histograms shared in its network.
Without either, boxes are merged by volume. A damaged one, or one of other spaces, is logged and
ignored. Read next: `nearcast/cluster/filter_aggregation.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.model import Space
from nearcast.model.errors import FileFormatError
from nearcast.server.learned.file_stamp import FileStamp, file_stamp

if TYPE_CHECKING:
    from nearcast.overlay import Density

log = logging.getLogger("nearcast.network")


class HistogramFiles:
    """The densities of a node's spaces, from files that are read again when they change.

    A density that has not changed is the same object as before.
    """

    def __init__(self, directory: Path | None, spaces: Iterable[Space]) -> None:
        self._spaces = {space.name: space for space in spaces}
        self._directory = directory
        self._stamps: dict[str, FileStamp | None] = {}
        self._own: dict[str, Density] = {}
        self._shared: dict[str, Density] = {}
        self.load_changed()

    @property
    def densities(self) -> dict[str, Density]:
        """The density of each space that has a histogram."""
        return self._shared | self._own

    def load_changed(self) -> bool:
        """Read each `histogram-SPACE.json` that has changed; return whether one has."""
        if self._directory is None:
            return False
        changed = False
        for space in self._spaces.values():
            path = self._directory / f"histogram-{space.name}.json"
            stamp = file_stamp(path)
            if space.name not in self._stamps or stamp != self._stamps[space.name]:
                self._stamps[space.name] = stamp
                changed |= self._read(space, path)
        return changed

    def take_shared(self, data: bytes) -> bool:
        """Take the network's histograms in place of those before; return whether one is used."""
        try:
            contents = dict(json.loads(data))
        except (ValueError, TypeError) as problem:
            raise FileFormatError(f"no histograms ({problem})", where="the network") from None
        found: dict[str, Density] = {}
        for name, content in contents.items():
            if name not in self._spaces:
                log.info("the network shares a histogram of %s: no such space here", name)
                continue
            found[name] = _density(json.dumps(content), self._spaces[name], "the network")
        self._shared = found
        used = [name for name in found if name not in self._own]
        if used:
            log.info("histograms of the network are used: %s", ", ".join(used))
        for name in found.keys() & self._own.keys():
            log.info("the network shares a histogram of %s; this node's own file decides", name)
        return bool(used)

    def _read(self, space: Space, path: Path) -> bool:
        """Read a file; return whether the density of the space is another one now."""
        instead = "the network's counts" if space.name in self._shared else "volume"
        try:
            self._own[space.name] = _density(path.read_text(encoding="utf-8"), space, str(path))
        except FileNotFoundError:
            log.info("No %s: boxes of the space %s are merged by %s", path, space.name, instead)
            return self._own.pop(space.name, None) is not None
        except (OSError, UnicodeDecodeError, FileFormatError) as problem:
            stays = "the old counts" if space.name in self._own else instead
            log.warning("%s; boxes of the space %s are merged by %s", problem, space.name, stays)
            return False
        log.info("histogram of the space %s read from %s", space.name, path)
        return True


def _density(text: str, space: Space, where: str) -> Density:
    from nearcast.overlay.density_file import read_density

    return read_density(text, space, where=where)
