"""Opens the file system of a path or URL with PyArrow, on a driver or in a worker.

Spark's name of S3 is `s3a`, with credentials in settings `fs.s3a.…`; Arrow's is `s3`. The same
settings reach Arrow here, so that a worker writes with the credentials that Spark reads with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from nearcast.model.errors import MisuseError

Settings = Mapping[str, str]
"""Hadoop's settings of file systems, as far as they are known: `fs.s3a.endpoint` and others."""

S3 = frozenset({"s3", "s3a", "s3n"})
S3_SETTINGS = (
    "access.key", "secret.key", "session.token", "endpoint", "endpoint.region",
    "connection.ssl.enabled", "path.style.access", "aws.credentials.provider",
)  # fmt: skip

_others: dict[str, Callable[[str], tuple[fs.FileSystem, str]]] = {}
_known: dict[str, str] = {}


def use_settings(settings: Settings) -> None:
    """Make these the settings of this process, for every later `open_store`."""
    if _known != settings:
        _known.clear()
        _known.update(settings)


def known_settings() -> Settings:
    """Return the settings of this process, to be sent to workers."""
    return dict(_known)


def is_url(root: str) -> bool:
    """Return whether `root` is a URL, not a local path."""
    return "://" in root or root.startswith("file:")


def scheme_of(root: str) -> str:
    """Return the scheme of a URL in lower case; "file" for a local path."""
    return urlsplit(root).scheme.lower() if is_url(root) else "file"


def opened_by(scheme: str, make: Callable[[str], tuple[fs.FileSystem, str]]) -> None:
    """Register `make` to open the URLs of a scheme in this process, where Arrow itself cannot."""
    _others[scheme] = make


def resolves(root: str) -> bool:
    """Return whether Arrow opens this path itself, so that workers can read and write there."""
    scheme = scheme_of(root)
    if scheme in S3 or scheme == "file":
        return True
    try:
        fs.FileSystem.from_uri(root)
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True


def open_store(root: str, settings: Settings | None = None) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URL, and the path in it.

    Without `settings`, those of this process (`use_settings`) count.
    """
    scheme = scheme_of(root)
    if scheme == "file":
        return fs.LocalFileSystem(), unquote(urlsplit(root).path) if is_url(root) else root
    if scheme in S3:
        return _s3(root, _known if settings is None else settings)
    if scheme in _others:
        return _others[scheme](root)
    try:
        store, base = fs.FileSystem.from_uri(root)
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise MisuseError(
            f"a file system that cannot be opened ({problem})",
            where=root,
            expected="a local path, or a URL that PyArrow or Hadoop knows",
        ) from None
    return store, base.rstrip("/")


def _s3(root: str, settings: Settings) -> tuple[fs.FileSystem, str]:
    """Return the bucket's file system; the settings of a bucket go before those of all buckets."""
    parts = urlsplit(root)
    bucket = parts.netloc
    told = {name: _of_bucket(settings, bucket, name) for name in S3_SETTINGS}
    path = f"{bucket}{parts.path}".rstrip("/")
    if not any(told.values()):
        store, _ = fs.FileSystem.from_uri(f"s3://{bucket}")
        return store, path
    if not told["endpoint"] and not told["endpoint.region"]:
        told["endpoint.region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**_s3_options(told)), path


def _of_bucket(settings: Settings, bucket: str, name: str) -> str:
    own = settings.get(f"fs.s3a.bucket.{bucket}.{name}", "")
    return own or settings.get(f"fs.s3a.{name}", "")


def _s3_options(told: Mapping[str, str]) -> dict[str, object]:
    options: dict[str, object] = {"region": told["endpoint.region"] or "us-east-1"}
    if told["access.key"]:
        options |= {"access_key": told["access.key"], "secret_key": told["secret.key"]}
        options |= {"session_token": told["session.token"]} if told["session.token"] else {}
    elif "Anonymous" in told["aws.credentials.provider"]:
        options["anonymous"] = True
    if told["endpoint"]:
        scheme, _, host = told["endpoint"].rpartition("://")
        plain = told["connection.ssl.enabled"].lower() == "false"
        options["endpoint_override"] = host
        options["scheme"] = scheme or ("http" if plain else "https")
        options["force_virtual_addressing"] = told["path.style.access"].lower() == "false"
    return options
