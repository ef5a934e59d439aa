"""What a stream's checkpoint was begun with: `stream.json`, checked at each start.

A checkpoint of an older release has no such file: it is continued, and the file is written. What
may change from start to start is in docs/live-stream.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from nearcast.model import FileFormatError, MisuseError, Space

FORMAT = 1
_NAME = "stream.json"


def check_checkpoint(checkpoint: Path, space: Space) -> None:
    """Raise if a checkpoint has another format or space; write what a new one is begun with.

    The space counts because the indexes in a checkpoint were built for it.
    """
    path = checkpoint / _NAME
    now = {"format": FORMAT, "space": space.name, "attributes": _digest(space)}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        number = int(known["format"])
    except FileNotFoundError:
        _write(path, now)
        return
    except (ValueError, KeyError, TypeError):
        raise FileFormatError("it is damaged", where=str(path)) from None
    if number > FORMAT:
        raise FileFormatError(
            f"a checkpoint of format {number}",
            where=str(path),
            expected=f"{FORMAT} at most: it was written by a newer release",
            todo="Use that release, or an empty checkpoint.",
        )
    if known != now:
        raise MisuseError(
            f"the space {space.name} as it is declared now",
            where=str(path),
            expected=f"the space {known.get('space')} as it was when this checkpoint was begun",
            todo="Start with another --checkpoint and --output.",
        )


def _digest(space: Space) -> str:
    told = [space.topic_filter, space.longitude, space.latitude, space.missing]
    told += [
        f"{a.name} {float(a.low)!r} {float(a.high)!r} {list(a.categories)}"
        for a in space.attributes
    ]
    told += sorted(space.required or ())
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _write(path: Path, fields: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(fields, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
