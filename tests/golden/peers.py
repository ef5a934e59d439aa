"""Between peers of an overlay: introductions, the messages of the tree, answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.golden.golden import Codec, Maker

from nearcast.overlay import messages as m
from nearcast.overlay.bounds import Extent
from nearcast.overlay.events import EventBatch
from nearcast.overlay.live.acknowledged import EventAck, decode_acks, encode_acks, make_id
from nearcast.overlay.live.codec import EnvelopeDecoder, FrameReader, encode_envelope
from nearcast.overlay.live.gap_news import GapReport, decode_gaps, encode_gaps
from nearcast.overlay.live.introduction import Hello, SpaceDigest, decode_hello, encode_hello

_ME = "10.0.0.7:7000/5f3a0100"
_EXTENT = Extent((0.0, 0.0), (100.0, 10.0))
_A, _B = m.Address("10.0.0.8:7000/00000001", 0), m.Address("[::1]:7000/00000002", 3)
_BOX = ((10.0, float("-inf")), (20.5, float("inf")))
_ENTRY = m.MemberEntry(_A, _BOX, 4)
_SURE, _UNSURE = make_id(b"8 bytes.", 7, sure=True, attempt=2), make_id(bytes(8), 1, sure=False)
_HANDOVER = m.GroupHandover(
    (m.Grant(1, (_ENTRY,)), m.Grant(2, ())), _B, 5, 6, None, 77, settled=False, known=(_A, _B)
)


def _batch(ids: tuple[bytes, ...], lows: Any, highs: Any, payloads: tuple[bytes, ...]) -> Any:
    hops = np.arange(len(ids), dtype=np.int64)
    return EventBatch(ids, np.array(lows), np.array(highs), payloads, hops)


_POINTS = _batch((_SURE, _UNSURE), [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]], (b"x", b""))
_EXTENDED = _batch((_SURE,), [[1.0, 2.0]], [[3.0, 4.0]], (b"payload",))
_BODIES: dict[str, Any] = {
    "join": m.Join(_A, _ENTRY, 0, 123, 4, _B, 2, settled=True, moving=True, hops=3),
    "ask": m.Ask(_ENTRY, 123),
    "answer": m.Answer(123, 0.25, twin=True),
    "adopt": m.Adopt(1, 9, (_ENTRY,), (_A, _B), (_B,), 123),
    "report": m.MemberReport(1, _ENTRY, 9, _B, 1, 60),
    "handover": _HANDOVER,
    "returned": m.Returned(_HANDOVER),
    "replace": m.Replace(2, _ENTRY, 9, 1),
    "left": m.MemberLeft(1, 2),
    "unknown": m.Unknown(1),
    "relocate": m.Relocate(1),
    "greet": m.Greet(_A, answer=True, known=(_B,)),
    "meet": m.Meet(_B, 2),
    "events": m.Events(_POINTS, rising=True),
    "events with an extent": m.Events(_EXTENDED, rising=False, asks=5),
    "barren": m.Barren((_BOX,), 5),
    "refused": m.Refused("no box of this space", 123),
    "ask boxes": m.AskBoxes(),
    "group boxes": m.GroupBoxes((_ENTRY,)),
}


def _plain(body: Any) -> Any:
    """Return a body that can be compared: arrays have no single truth."""
    if not isinstance(body, m.Events):
        return body
    batch = body.batch
    arrays = [one.tolist() for one in (batch.lows, batch.highs, batch.hops)]
    return batch.ids, batch.payloads, arrays, body.rising, body.asks


_BY_MEANING = {repr(_plain(body)): body for body in _BODIES.values()}


def _encode(meaning: Any) -> bytes:
    return encode_envelope(1, m.Envelope(m.Address(_ME, 2), _A, _BY_MEANING[repr(meaning)]))


def _decode(data: bytes) -> Any:
    [(kind, content)] = FrameReader().read(data)
    space, envelope = EnvelopeDecoder(_ME, {1: _EXTENT}).decode(kind, content)
    assert (space, envelope.to, envelope.sender) == (1, m.Address(_ME, 2), _A)
    return _plain(envelope.body)


_GAPS = [GapReport(b"8 bytes.", _BOX, 1_500), GapReport(bytes(8), _BOX, None)]

CODECS = {
    "frames/overlay.hex": Codec(
        "messages between peers of an overlay: size, kind, space, MessagePack",
        {name: _plain(body) for name, body in _BODIES.items()},
        _encode,
        _decode,
    ),
    "frames/overlay-hello.hex": Codec(
        "introductions of peers",
        {
            "peer": Hello(
                name=_ME, nonce=bytes(16), spaces=(SpaceDigest("shops", "26c7"),), has_key=True
            ),
            "observer": Hello(name="", nonce=bytes(range(16))),
        },
        encode_hello,
        decode_hello,
    ),
    "frames/overlay-acks.hex": Codec(
        "answers to events at QoS 1",
        {"answers": (3, [EventAck(_SURE, 0, True), EventAck(_SURE, 2, False)])},
        lambda value: encode_acks(*value),
        decode_acks,
    ),
}
CODECS["frames/overlay-gaps.hex"] = Codec(
    "news of gaps in the tree",
    {"gaps": (1, _GAPS)},
    lambda value: encode_gaps(*value),
    lambda data: decode_gaps(data, {1: _EXTENT}),
)
FILES: dict[str, Maker] = {name: codec.text for name, codec in CODECS.items()}
