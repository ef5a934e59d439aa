"""The messages between peers as bytes.

A frame is its size (4 bytes, little endian), its kind (1 byte) and a body. Bodies are MessagePack
arrays without field names; the values of events are arrays of float64. The kinds from `_FIRST` on
are the messages of the tree, in the order of `_BODIES`; they begin with the number of the space
among those of the sender's introduction. Decoding checks all that the tree relies on: lengths,
ranges, and that every box is a box of the space. What does not fit is a `PeerProtocolError`.

A new kind goes to the end of `_BODIES`, and raises `SPEAKS` (`introduction.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from struct import Struct
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay.bounds import Bounds, Extent
from nearcast.overlay.events import EventBatch
from nearcast.overlay.messages import (
    Address,
    Adopt,
    Answer,
    Ask,
    AskBoxes,
    Barren,
    Body,
    Envelope,
    Events,
    Grant,
    Greet,
    GroupBoxes,
    GroupHandover,
    Join,
    Meet,
    MemberEntry,
    MemberLeft,
    MemberReport,
    Refused,
    Relocate,
    Replace,
    Returned,
    Unknown,
)

HEAD = Struct("<IB")
"""Size of what follows the size, and kind."""
MOST_FRAME = 1 << 22
"""The largest frame that is accepted, in bytes."""
BESIDE_PAYLOAD = 1 << 14
"""How many bytes a frame with one event may have beside its payload."""
MOST_EVENTS = 4_096
"""The most events of one frame."""
ID_BYTES = 19
"""The size of an event's identifier (`acknowledged.py`)."""
_MOST_NAME, _MOST_LISTED, _MOST_LEVELS = 300, 4_096, 64

_Number = Annotated[int, Meta(ge=-1, le=2**53)]
_Level = Annotated[int, Meta(ge=0, le=_MOST_LEVELS)]
_Name = Annotated[str, Meta(min_length=1, max_length=_MOST_NAME)]
_Text = Annotated[str, Meta(max_length=_MOST_NAME)]
_Address = tuple[_Name, Annotated[int, Meta(ge=-1, le=2**31)]]
_Corner = Annotated[tuple[float, ...], Meta(min_length=1, max_length=256)]
_Box = tuple[_Corner, _Corner]
_Entry = tuple[_Address, _Box, _Number]
_Entries = Annotated[tuple[_Entry, ...], Meta(max_length=_MOST_LISTED)]
_Addresses = Annotated[tuple[_Address, ...], Meta(max_length=_MOST_LISTED)]
_Boxes = Annotated[tuple[_Box, ...], Meta(max_length=_MOST_LISTED)]
_Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
_Grants = Annotated[tuple[tuple[_Level, _Entries], ...], Meta(max_length=_MOST_LEVELS)]
_Handover = tuple[
    _Grants,
    _Address | None,
    _Number,
    _Number,
    _Address | None,
    _Number | None,
    bool,
    _Level,
    _Addresses,
]
_Batch = tuple[
    Annotated[tuple[_Id, ...], Meta(min_length=1, max_length=MOST_EVENTS)],
    bytes,
    bytes,
    Annotated[tuple[bytes, ...], Meta(max_length=MOST_EVENTS)],
    bytes,
]


class _Reader:
    """Turns decoded arrays into the values of the tree, for one space."""

    def __init__(self, extent: Extent) -> None:
        self._extent = extent

    def address(self, value: Any) -> Address | None:
        return None if value is None else Address(*value)

    def box(self, value: Any) -> Bounds:
        if not self._extent.is_sound(value):
            raise PeerProtocolError(f"the box {value}", expected="a box of the space")
        return value  # type: ignore[no-any-return]

    def entry(self, value: Any) -> MemberEntry:
        address, box, size = value
        return MemberEntry(Address(*address), self.box(box), size)

    def entries(self, value: Any) -> tuple[MemberEntry, ...]:
        return tuple([self.entry(one) for one in value])

    def addresses(self, value: Any) -> tuple[Address, ...]:
        return tuple([Address(*one) for one in value])

    def boxes(self, value: Any) -> tuple[Bounds, ...]:
        return tuple([self.box(one) for one in value])

    def grants(self, value: Any) -> tuple[Grant, ...]:
        return tuple([Grant(level, self.entries(entries)) for level, entries in value])

    def handover(self, value: Any) -> GroupHandover:
        grants, uplink, uplink_term, term, sponsor, nonce, settled, hops, known = value
        return GroupHandover(
            self.grants(grants),
            self.address(uplink),
            uplink_term,
            term,
            self.address(sponsor),
            nonce,
            settled,
            hops,
            self.addresses(known),
        )

    def batch(self, value: Any) -> EventBatch:
        ids, lows, highs, payloads, hops = value
        count, n = len(ids), self._extent.dimensions
        sides = 8 * count * n
        if len(lows) != sides or len(highs) not in (0, sides) or len(hops) != count:
            raise PeerProtocolError("events whose sizes contradict each other")
        if len(payloads) != count:
            raise PeerProtocolError(f"{len(payloads)} payloads", expected=str(count))
        # bytearray: compiled kernels take arrays that may be written
        low = np.frombuffer(bytearray(lows), dtype="<f8").reshape(count, n)
        high = low
        if highs:
            high = np.frombuffer(bytearray(highs), dtype="<f8").reshape(count, n)
        if not (low <= high).all():
            raise PeerProtocolError("an event's values", expected="numbers, the lower first")
        counted = np.frombuffer(hops, dtype=np.uint8).astype(np.int64)
        return EventBatch(ids, low, high, payloads, counted)


class _Form(NamedTuple):
    """How a kind of value is written; `wire` is its type on the wire."""

    wire: Any
    read: Callable[[_Reader, Any], Any]
    write: Callable[[Any], Any]


def _plain(value: Any) -> Any:
    return value


def _grants_out(grants: tuple[Grant, ...]) -> Any:
    return [(grant.level, grant.entries) for grant in grants]


def _handover_out(one: GroupHandover) -> Any:
    return (
        _grants_out(one.grants),
        *(getattr(one, field.name) for field in fields(one)[1:]),
    )


def _batch_out(batch: EventBatch) -> Any:
    lows = batch.lows.tobytes()
    highs = batch.highs.tobytes()
    hops = np.minimum(batch.hops, 255).astype(np.uint8).tobytes()
    return batch.ids, lows, b"" if highs == lows else highs, batch.payloads, hops


_FORMS: dict[str, _Form] = {
    "bool": _Form(bool, lambda _, value: value, _plain),
    "int": _Form(_Number, lambda _, value: value, _plain),
    "level": _Form(_Level, lambda _, value: value, _plain),
    "int | None": _Form(_Number | None, lambda _, value: value, _plain),
    "float": _Form(float, lambda _, value: value, _plain),
    "str": _Form(_Text, lambda _, value: value, _plain),
    "Address": _Form(_Address, _Reader.address, _plain),
    "Address | None": _Form(_Address | None, _Reader.address, _plain),
    "MemberEntry": _Form(_Entry, _Reader.entry, _plain),
    "tuple[MemberEntry, ...]": _Form(_Entries, _Reader.entries, _plain),
    "tuple[Address, ...]": _Form(_Addresses, _Reader.addresses, _plain),
    "tuple[Bounds, ...]": _Form(_Boxes, _Reader.boxes, _plain),
    "tuple[Grant, ...]": _Form(_Grants, _Reader.grants, _grants_out),
    "GroupHandover": _Form(_Handover, _Reader.handover, _handover_out),
    "EventBatch": _Form(_Batch, _Reader.batch, _batch_out),
}
_LEVELS = {"height", "level", "hops"}
"""Fields that count levels or hops: small numbers."""

_BODIES: tuple[type, ...] = (
    Join,
    Ask,
    Answer,
    Adopt,
    MemberReport,
    GroupHandover,
    Returned,
    Replace,
    MemberLeft,
    Unknown,
    Relocate,
    Greet,
    Meet,
    Events,
    Barren,
    Refused,
    AskBoxes,
    GroupBoxes,
)
_FIRST = 16
_KINDS = {body: _FIRST + place for place, body in enumerate(_BODIES)}


def _forms_of(body: type) -> list[_Form]:
    found = []
    for field in fields(body):
        kind = str(field.type)
        small = field.name in _LEVELS and kind == "int"
        found.append(_FORMS["level" if small else kind])
    return found


class _Layout:
    """How one kind of message is written."""

    def __init__(self, body: type) -> None:
        self.body = body
        self.names = [field.name for field in fields(body)]
        self.forms = _forms_of(body)
        self.decoder = msgspec.msgpack.Decoder(
            tuple[(_Number, _Address, *(form.wire for form in self.forms))]  # type: ignore[misc]
        )

    def values(self, body: Body) -> list[Any]:
        return [
            form.write(getattr(body, name))
            for name, form in zip(self.names, self.forms, strict=True)
        ]

    def read(self, reader: _Reader, values: tuple[Any, ...]) -> Body:
        read = [form.read(reader, value) for form, value in zip(self.forms, values, strict=True)]
        return self.body(*read)  # type: ignore[no-any-return]


_LAYOUTS = {kind: _Layout(body) for body, kind in _KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode


def is_of_tree(kind: int) -> bool:
    """Return whether a kind of frame is a message of the tree."""
    return kind in _LAYOUTS


def encode_frame(kind: int, body: bytes) -> bytes:
    """Return a frame."""
    return HEAD.pack(1 + len(body), kind) + body


def encode_envelope(space: int, envelope: Envelope) -> bytes:
    """Return a message of the tree as a frame; the receiver knows its own name."""
    to, sender, body = envelope
    kind = _KINDS[type(body)]
    content = _encode((to.seat, sender, *_LAYOUTS[kind].values(body)))
    return HEAD.pack(2 + len(content), kind) + bytes((space,)) + content


class EnvelopeDecoder:
    """Decodes the messages of the tree for one peer; `extents` are those of its spaces."""

    def __init__(self, me: str, extents: dict[int, Extent]) -> None:
        self._me = me
        self._readers = {number: _Reader(extent) for number, extent in extents.items()}

    def decode(self, kind: int, body: bytes) -> tuple[int, Envelope]:
        """Return the number of the space, and the message; PeerProtocolError if it is not valid."""
        layout = _LAYOUTS.get(kind)
        reader = self._readers.get(body[0]) if body else None
        if layout is None or reader is None:
            raise PeerProtocolError(f"a frame of kind {kind}", expected="a message of a space")
        try:
            seat, sender, *values = layout.decoder.decode(memoryview(body)[1:])
            content = layout.read(reader, tuple(values))
        except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as problem:
            name = layout.body.__name__
            raise PeerProtocolError(f"a damaged {name} ({problem})") from None
        return body[0], Envelope(Address(self._me, seat), Address(*sender), content)


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self, most: int = MOST_FRAME) -> None:
        self.most = most
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = HEAD.size

    def read(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the kind and body of each frame that is complete.

        Raises PeerProtocolError for a frame that is too large or has no kind. O(bytes).
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        whole = b"".join(self._parts)
        frames, at = [], 0
        self._wanted = HEAD.size
        while len(whole) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(whole, at)
            if not 1 <= size <= self.most:
                raise PeerProtocolError(
                    f"a frame of {size} bytes", expected=f"1 to {self.most} bytes"
                )
            stop = at + 4 + size
            if stop > len(whole):
                self._wanted = 4 + size
                break
            frames.append((kind, whole[at + HEAD.size : stop]))
            at = stop
        self._parts = [whole[at:]] if at < len(whole) else []
        self._size = len(whole) - at
        return frames
