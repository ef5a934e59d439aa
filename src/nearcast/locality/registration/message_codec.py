"""The messages of `nearcast.locality` as bytes: a code, then MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec

from nearcast.locality.registration.messages import (
    EventOffer,
    HolderMatch,
    Known,
    MatchTaken,
    Probe,
    Register,
)
from nearcast.model.errors import PeerProtocolError

_TYPES = (Register, EventOffer, Probe, Known, HolderMatch, MatchTaken)
_CODES = {kind: bytes((code,)) for code, kind in enumerate(_TYPES)}
_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in _TYPES]
_encode = msgspec.msgpack.Encoder().encode


def encode_place_message(message: Any) -> bytes:
    """Return a message between gateways, holders and outboxes as bytes."""
    return _CODES[type(message)] + _encode(message)


def decode_place_message(data: bytes) -> Any:
    """Return the message in `data`; invalid bytes are a PeerProtocolError."""
    try:
        message = _DECODERS[data[0]].decode(data[1:])
    except (msgspec.MsgspecError, IndexError) as problem:
        raise PeerProtocolError(str(problem), where="message about places") from None
    if type(message) is Known:
        return Known(message.holder, message.table, _hashable(message.key), message.revision)
    return message


def _hashable(value: Any) -> Any:
    """Return a key with its lists as tuples: MessagePack has no tuples."""
    return tuple(_hashable(part) for part in value) if isinstance(value, list) else value
