"""The messages of `nearcast.locality` as bytes: a code, then MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec

from nearcast.locality.messages import Known, Match, Matched, Offer, Probe, Register
from nearcast.model.errors import PeerProtocolError

_TYPES = (Register, Offer, Probe, Known, Match, Matched)
_CODES = {kind: bytes((code,)) for code, kind in enumerate(_TYPES)}
_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in _TYPES]
_encode = msgspec.msgpack.Encoder().encode


def encode_place_message(message: Any) -> bytes:
    """Return a message between gateways, holders and spools as bytes."""
    return _CODES[type(message)] + _encode(message)


def decode_place_message(data: bytes) -> Any:
    """Return the message; anything else is a PeerProtocolError."""
    try:
        message = _DECODERS[data[0]].decode(data[1:])
    except (msgspec.MsgspecError, IndexError) as problem:
        raise PeerProtocolError(str(problem), where="message about places") from None
    if type(message) is Known:
        return Known(message.holder, message.table, _hashable(message.key), message.revision)
    return message


def _hashable(value: Any) -> Any:
    """Return keys as they were: MessagePack knows no tuples."""
    return tuple(_hashable(one) for one in value) if isinstance(value, list) else value
