"""Which file of map tiles is served, by the setting `[http] tiles`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.config.http_section import HttpSection, is_tile_file

if TYPE_CHECKING:
    from nearcast.server.http.pmtiles import TileArchive

TILE_ADDRESS = "/api/tiles/{z}/{x}/{y}"


def tiles_of(section: HttpSection) -> TileArchive | None:
    """Open the configured file, None where there is none; what cannot be read raises."""
    if section.is_off or section.tiles is None or not is_tile_file(section.tiles):
        return None
    from nearcast.server.http.pmtiles import TileArchive  # it needs numpy: not at every start

    return TileArchive(Path(section.tiles))
