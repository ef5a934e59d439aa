"""Spaces and messages, as the overlay sees them: boxes and bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as struct_error

from nearcast.broker import SpaceSettings
from nearcast.broker.persistence.journal import decode_message, encode_message
from nearcast.broker.publish.message import Message
from nearcast.index.topic_filters import topic_matches
from nearcast.model import Event, Space
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.overlay import Extent, Settings
from nearcast.overlay.bounds import Bounds, union_of
from nearcast.overlay.density_file import read_density
from nearcast.overlay.election import Method
from nearcast.overlay.live.introduction import SpaceDigest, digest_of
from nearcast.server.overlay.runtime import OverlaySpace

_LEFT_MS = Struct("<I")
_MOST_LEFT_MS = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """What all peers of an overlay share, beside the space."""

    method: Method = Method.EXACT
    least: int = 3
    most: int = 6
    beat_ms: int = 1_000
    cache_size: int = 0
    spread: float = 0.0


def overlay_space(
    settings: SpaceSettings, tree: TreeSettings, histogram: Path | None = None
) -> OverlaySpace:
    """Return a space with the settings of its tree; with a histogram, events count in elections.

    Raises FileFormatError for a damaged histogram, or one of another space.
    """
    space = settings.space
    counts = "" if histogram is None else read_text(histogram)
    attributes = [(one.name, one.low, one.high, list(one.categories)) for one in space.attributes]
    agreed = {
        "topics": space.topic_filter,
        "attributes": attributes,
        "coordinates": [space.longitude, space.latitude],
        "missing": space.missing,
        "required": sorted(space.required or ()),
        "values": settings.values,
        "paths": {name: list(path) for name, path in settings.paths.items()},
        "tree": [
            tree.method.value,
            tree.least,
            tree.most,
            tree.beat_ms,
            tree.cache_size,
            tree.spread,
        ],
    }
    if counts:
        agreed["counts"] = digest_of(counts)
    digest = SpaceDigest(space.name, digest_of(json.dumps(agreed, sort_keys=True)))
    beat_ms = tree.beat_ms
    return OverlaySpace(
        digest,
        Settings(
            Extent(space.extent.lows, space.extent.highs),
            least=tree.least,
            most=tree.most,
            method=tree.method,
            density=read_density(counts, space, where=str(histogram)) if counts else None,
            beat_ms=beat_ms,
            patience_ms=beat_ms * 7 // 2,
            retry_ms=max(1, beat_ms * 4 // 5),
            probe_ms=beat_ms * 10,
            cache_size=tree.cache_size,
            spread=tree.spread,
        ),
    )


def read_text(path: Path) -> str:
    """Return the content of a file; an EnvironmentProblem if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise EnvironmentProblem(
            getattr(problem, "strerror", None) or "no text", where=str(path)
        ) from None


def event_box(event: Event) -> Bounds:
    """Return a box around everything that an event covers."""
    point = event.point
    if point is not None:
        return point, point
    return union_of([(box.lows, box.highs) for box in event.boxes()])


# --- messages ------------------------------------------------------------------------------------


def pack_message(message: Message, now_ms: int) -> bytes:
    """Return a message for other peers: with the time left, since clocks may differ."""
    left_ms = 0
    if message.expires_at_ms:
        left_ms = min(max(1, message.expires_at_ms - now_ms), _MOST_LEFT_MS)
    plain = Message(message.head, message.payload)
    return _LEFT_MS.pack(left_ms) + encode_message(plain, 0)


def unpack_message(data: bytes, space: Space, now_ms: int) -> Message:
    """Return a message of another peer; FileFormatError if it is damaged or not of the space."""
    try:
        (left_ms,) = _LEFT_MS.unpack_from(data)
    except struct_error:
        raise FileFormatError("a message cut short", where="an event of a peer") from None
    message = decode_message(data, _LEFT_MS.size)
    try:
        topic = message.topic_text()
    except UnicodeDecodeError:
        raise FileFormatError("a topic that is no text", where="an event of a peer") from None
    if not topic_matches(space.topic_filter, topic):
        raise FileFormatError(
            f"the topic {topic[:100]!r}", where="an event of a peer", expected=space.topic_filter
        )
    if left_ms:
        message.expires_at_ms = now_ms + left_ms
    return message
