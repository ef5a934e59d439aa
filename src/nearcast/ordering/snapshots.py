"""All that a process knows and holds, as bytes: for a restart or a takeover.

    4 bytes  mark of the form
    4 bytes  CRC-32 of what follows
    4 bytes  length of the description, then the description in JSON
    4 bytes  length of the state, then the state (layout.py), deflated
    rest     the messages that wait, of the lengths that the description gives

Read next: process.py.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from nearcast.ordering import layout
from nearcast.ordering.message import Message
from nearcast.ordering.names import wrong

if TYPE_CHECKING:
    from nearcast.ordering.process import CausalProcess

    P = TypeVar("P", bound=CausalProcess)

_MARK: Final = b"NCO\x02"


def written(process: CausalProcess) -> bytes:
    """Return the bytes of `process`."""
    messages = [one.encode(roster=True) for one in process._held.values()]
    names = process._names
    description = {
        "process": process.process,
        "closed": names.closed,
        "members": list(names.members().items()),
        "table": names.table,
        "offsets": list(process.offsets.items()),
        "held": list(zip(process._held, map(len, messages), strict=True)),
    }
    state = zlib.compress(process._state.tobytes())
    text = json.dumps(description).encode()
    body = b"".join([_long(len(text)), text, _long(len(state)), state, *messages])
    return _MARK + _long(zlib.crc32(body)) + body


def restored(kind: type[P], snapshot: bytes) -> P:
    """Return the process that was written."""
    body = snapshot[8:]
    if snapshot[:4] != _MARK or snapshot[4:8] != _long(zlib.crc32(body)):
        raise wrong("a snapshot that is damaged", expected="what `snapshot` returned")
    text, at = _part(body, 0)
    packed, at = _part(body, at)
    state = np.frombuffer(zlib.decompress(packed), np.int64).copy()
    if state[layout.ALGORITHM] != kind.algorithm:
        raise wrong("a snapshot of another algorithm", expected=kind.algorithm.name)
    return _rebuilt(kind, json.loads(text), state, body[at:])


def _rebuilt(kind: type[P], description: dict[str, Any], state: layout.State, rest: bytes) -> P:
    members = dict(description["members"])
    process = kind(
        description["process"],
        float(state[layout.LIFETIME]) / 1e6,
        skew=float(state[layout.SKEW]) / 1e6,
        processes=list(members) if description["closed"] else None,
    )
    process._names.replace_members(members, tuple(description["table"]))
    process._use(state)
    process._note_names()
    process._offsets.update(description["offsets"])
    at = 0
    for serial, length in description["held"]:
        message = Message.decode(rest[at : at + length], roster=tuple(description["table"]))
        process._held[serial] = message
        at += length
    return process


def _long(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _part(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    return body[at + 4 : end], end
