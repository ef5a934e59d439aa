"""The files of the page: `/` and `/assets/…`, from the folder `page` beside this module."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from nearcast.server.http.endpoint import HttpAnswer
from nearcast.server.http.problem import ProblemError

FOLDER = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".geojson": "application/geo+json",
    ".webmanifest": "application/manifest+json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}
_WORTH_PACKING = 1_024
_PACKED = (".html", ".js", ".mjs", ".css", ".json", ".geojson", ".svg", ".txt", ".md")


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    stamp: tuple[int, int]
    tag: str
    kind: str
    plain: bytes
    packed: bytes | None


class PageFiles:
    """Files that were asked for, packed once; a changed file is read again."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._known: dict[str, PageFile] = {}

    def answer(self, path: str, headers: dict[str, str]) -> HttpAnswer:
        """Return the answer to a request for a file; a ProblemError where there is none."""
        name = "index.html" if path == "/" else unquote(path.removeprefix("/assets/"))
        if path != "/" and not path.startswith("/assets/"):
            raise ProblemError(HTTPStatus.NOT_FOUND, f"nothing is at {path[:200]}")
        file = self._file(name)
        sent = [("ETag", file.tag), ("Cache-Control", "no-cache"), ("Vary", "Accept-Encoding")]
        if file.tag in headers.get("if-none-match", ""):
            return HttpAnswer(304, headers=sent)
        if file.packed is not None and "gzip" in headers.get("accept-encoding", ""):
            return HttpAnswer(200, file.packed, file.kind, [*sent, ("Content-Encoding", "gzip")])
        return HttpAnswer(200, file.plain, file.kind, sent)

    def _file(self, name: str) -> PageFile:
        path = self._path(name)
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._known.get(name)
            if known is None or known.stamp != stamp:
                known = self._known[name] = _read(path, stamp)
        except OSError:
            raise ProblemError(HTTPStatus.NOT_FOUND, f"no file {name[:200]}") from None
        return known

    def _path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        kind = PurePosixPath(name).suffix
        is_plain = all(one.isprintable() and one[:1] not in ("/", ".", "") for one in parts)
        if not parts or not is_plain or "\\" in name or kind not in _KINDS:
            raise ProblemError(HTTPStatus.NOT_FOUND, f"no file {name[:200]!r}")
        return self._folder.joinpath(*parts)


def _read(path: Path, stamp: tuple[int, int]) -> PageFile:
    plain = path.read_bytes()
    packed = None
    if len(plain) >= _WORTH_PACKING and path.suffix in _PACKED:
        beside = path.with_name(path.name + ".gz")
        packed = beside.read_bytes() if beside.exists() else gzip.compress(plain, 6, mtime=0)
    tag = f'"{hashlib.sha256(plain).hexdigest()[:24]}"'
    return PageFile(stamp, tag, _KINDS[path.suffix], plain, packed)
