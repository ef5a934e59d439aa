"""The feed of a network: publications in a stream of JetStream, as nodes write and streams read it.

    stream   nearcast_<network>_feed
    subject  nearcast-feed.<network>.<node>        one for each node that publishes
    message  version, instant, number, topic, payload, user properties

`number` counts the publications that a node has put there; with the node's epoch it is the
message's identity (`Nats-Msg-Id`), so that what is sent twice is stored once.
"""

from __future__ import annotations

import msgspec

from nearcast.model.errors import PeerProtocolError

Pairs = tuple[tuple[str, str], ...]

VERSION = 1


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A publication in the feed; `epoch` and `number` tell it from all others of its node."""

    version: int
    t_ms: int
    epoch: str
    number: int
    topic: str
    payload: bytes
    pairs: Pairs = ()


class _Versioned(msgspec.Struct, frozen=True, array_like=True):
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Publication).decode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode


def encode_publication(one: Publication) -> bytes:
    """Return what is stored."""
    return _encode(one)


def decode_publication(data: bytes) -> Publication:
    """Read what is stored, or raise PeerProtocolError: later fields are ignored, not versions."""
    try:
        if _decode_version(data).version != VERSION:
            raise PeerProtocolError(
                f"version {_decode_version(data).version}",
                where="feed of the network",
                expected=f"version {VERSION}",
                todo="Use the same version of Nearcast as the nodes.",
            )
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise PeerProtocolError(
            f"a message that is none of ours ({problem})", where="feed of the network"
        ) from None


def stream_name(network: str) -> str:
    """Return the name of a network's stream.

    >>> stream_name("nearcast")
    'nearcast_nearcast_feed'
    """
    return f"nearcast_{network}_feed"


def feed_subject(network: str, node: str) -> str:
    """Return the subject of a node's publications; `*` for those of all nodes."""
    return f"nearcast-feed.{network}.{node}"
