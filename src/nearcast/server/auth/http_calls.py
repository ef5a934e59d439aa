"""HTTP calls of logins: one request, bounded in time and size; run in a thread."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

_LARGEST = 1 << 20


class CallAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes


def call(
    url: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    authority: Path | None = None,
) -> CallAnswer:
    """Return the answer to a GET, or to a POST of a body; OSError if there is none in time.

    Redirects are not followed: they could lead to where nobody has looked.
    """
    parts = urlsplit(url)
    until_s = time.monotonic() + timeout_s
    host, path = parts.hostname or "", parts.path or "/"
    target = f"{path}?{parts.query}" if parts.query else path
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request("GET" if body is None else "POST", target, body, headers or {})
            answer = connection.getresponse()
            return CallAnswer(answer.status, _read(answer, until_s))
        except http.client.HTTPException as problem:
            raise OSError(f"no HTTP answer ({type(problem).__name__})") from problem


def _read(answer: http.client.HTTPResponse, until_s: float) -> bytes:
    """Return a body, read in portions: all of them together take no longer than one may."""
    parts: list[bytes] = []
    size = 0
    while portion := answer.read1(1 << 16):
        parts.append(portion)
        size += len(portion)
        if size > _LARGEST:
            raise OSError(f"an answer of more than {_LARGEST} bytes")
        if time.monotonic() > until_s:
            raise TimeoutError("the answer takes too long")
    return b"".join(parts)
