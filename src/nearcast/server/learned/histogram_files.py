"""Event histograms made by the pipeline; they guide how a node's boxes are merged for its peers.

Without a histogram, boxes are merged by volume. A damaged one, or one of other spaces, is logged
and ignored. Read next: `nearcast/cluster/filter_aggregation.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.model import Space
from nearcast.model.errors import FileFormatError

if TYPE_CHECKING:
    from nearcast.overlay import Density

log = logging.getLogger("nearcast.network")


def load_densities(directory: Path | None, spaces: Iterable[Space]) -> dict[str, Density]:
    """Return the density of each space that has a `histogram-SPACE.json` in a directory."""
    if directory is None:
        return {}
    from nearcast.overlay.density_file import read_density

    found: dict[str, Density] = {}
    for space in spaces:
        path = directory / f"histogram-{space.name}.json"
        try:
            text = path.read_text(encoding="utf-8")
            found[space.name] = read_density(text, space, where=str(path))
        except FileNotFoundError:
            log.info("No %s: boxes of the space %s are merged by volume", path, space.name)
        except (OSError, UnicodeDecodeError, FileFormatError) as problem:
            log.warning("%s; boxes of the space %s are merged by volume", problem, space.name)
    return found
