"""The format of the feed: publications in a JetStream stream, written by nodes, read by jobs.

    stream   nearcast_<network>_feed
    subject  nearcast-feed.<network>.<node>        one per publishing node
    message  version, time, epoch, number, topic, payload, user properties

`number` counts the publications of a node; with the node's epoch it is the message's identity
(`Nats-Msg-Id`), so that a message sent twice is stored once.
"""

from __future__ import annotations

import msgspec

from nearcast.model.errors import PeerProtocolError

Pairs = tuple[tuple[str, str], ...]

VERSION = 1


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A publication in the feed; `epoch` and `number` identify it within its node."""

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
    """Return a publication as bytes."""
    return _encode(one)


def decode_publication(data: bytes) -> Publication:
    """Return a publication; PeerProtocolError for another version. Later fields are ignored."""
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
            f"an unknown message ({problem})", where="feed of the network"
        ) from None


def stream_name(network: str) -> str:
    """Return the name of a network's stream.

    >>> stream_name("nearcast")
    'nearcast_nearcast_feed'
    """
    return f"nearcast_{network}_feed"


def feed_subject(network: str, node: str) -> str:
    """Return the subject of a node's publications; `*` for all nodes."""
    return f"nearcast-feed.{network}.{node}"
