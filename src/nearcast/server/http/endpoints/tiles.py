"""Map tiles out of a file of the broker's machine."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from nearcast.server.http.endpoint import Call, HttpAnswer, endpoint
from nearcast.server.http.problem import ProblemError
from nearcast.server.http.tile_source import TILE_ADDRESS

_KEPT_S = 86_400  # by browsers


@endpoint("GET", TILE_ADDRESS, kind="application/octet-stream", may_be_empty=True)
async def tile(call: Call) -> HttpAnswer:
    """Return a tile of the file `[http] tiles`, as it is there; 204 where the file has none."""
    archive = call.site.tiles
    if archive is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "[http] tiles names no file of tiles")
    z, x, y = (_number(call.parts[name]) for name in ("z", "x", "y"))
    found = await asyncio.to_thread(archive.tile, z, x, y)
    headers = [("Cache-Control", f"private, max-age={_KEPT_S}")]
    if found is None:
        return HttpAnswer(HTTPStatus.NO_CONTENT, headers=headers)
    if found.is_packed:
        headers.append(("Content-Encoding", "gzip"))
    return HttpAnswer(HTTPStatus.OK, found.data, found.kind, headers)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"found {text[:20]!r}; expected a number")
    return int(text)
