"""How two peers introduce themselves: same version, same spaces, same key.

    connecting peer                                                     listening peer
       │── HELLO: versions, name, nonce, spaces ─────────────────────────────►│
       │◄──────────────────────────── HELLO, or REFUSED with the reason ──────│
       │── PROOF: HMAC(key, "caller", both hellos) ──────────────────────────►│
       │◄─── PROOF: HMAC(key, "callee", both hellos), or REFUSED ─────────────│
       │◄── messages ────────────────────────────────────────────────────────►│

The key itself is never sent. A proof covers both introductions, so it fits this connection alone.
Without a key the proof is made with an empty one: it then only shows that both sides read the same
introductions. The name of a peer is its address and a number of its start: `10.0.0.7:7000/5f3a01`.
An observer (`nearcast peers`) has no name; it is told the state of the peer, and sends no messages.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from nearcast.model.errors import PeerProtocolError

SPEAKS = (3, 3)
"""The versions of the messages that this peer speaks, from and to."""
HELLO, PROOF, REFUSED, ASK_STATE, STATE, ACKS, GAPS = range(1, 8)
"""The kinds of frames beside the messages of the tree."""
MOST_HELLO = 1 << 16
"""The largest frame before the introduction is complete."""
_MAGIC = "nearcast peer"

_Name = Annotated[str, Meta(max_length=300)]


class SpaceDigest(msgspec.Struct, array_like=True, frozen=True):
    """A space by name, and a digest of all that peers must agree about."""

    name: _Name
    digest: _Name


class Hello(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """An introduction."""

    magic: Annotated[str, Meta(max_length=32)] = _MAGIC
    least_version: int = SPEAKS[0]
    version: int = SPEAKS[1]
    name: _Name
    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    spaces: Annotated[tuple[SpaceDigest, ...], Meta(max_length=256)] = ()
    has_key: bool = False

    @property
    def is_observer(self) -> bool:
        """Whether this is no peer: it only asks for the state."""
        return not self.name


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Hello).decode


def encode_hello(hello: Hello) -> bytes:
    """Return an introduction as bytes."""
    return _encode(hello)


def decode_hello(data: bytes) -> Hello:
    """Return the introduction; PeerProtocolError for anything else."""
    try:
        hello = _decode(data)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise PeerProtocolError(
            f"no introduction of a peer ({problem})", expected="another Nearcast peer"
        ) from None
    if hello.magic != _MAGIC:
        raise PeerProtocolError(f"{hello.magic[:20]!r}", expected="another Nearcast peer")
    return hello


def digest_of(text: str) -> str:
    """Return a short digest of the description of a space.

    >>> digest_of("shops")
    '26c7f9e9079f3733'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def objection(mine: Hello, theirs: Hello) -> str:
    """Return why two peers cannot work together, as a sentence for the other one; "" if they can.

    >>> mine = Hello(name="a:1/0", nonce=bytes(16), spaces=(SpaceDigest("shops", "11"),))
    >>> theirs = Hello(name="b:2/0", nonce=bytes(16), spaces=(SpaceDigest("shops", "22"),))
    >>> objection(mine, theirs)
    'space shops is declared differently here: all peers of an overlay need the same [[space]]'
    """
    if theirs.version < mine.least_version or theirs.least_version > mine.version:
        return (
            f"this peer speaks versions {mine.least_version} to {mine.version}, you speak "
            f"{theirs.least_version} to {theirs.version}: run versions of Nearcast that meet"
        )
    if mine.has_key != theirs.has_key:
        here, there = ("a key", "none") if mine.has_key else ("no key", "one")
        return f"this overlay has {here} and you have {there}: set the same key at all peers"
    if mine.is_observer or theirs.is_observer:
        return ""
    if mine.name == theirs.name:
        return "you have the name of this very peer: a contact must be another peer"
    return _other_spaces(mine.spaces, theirs.spaces)


def _other_spaces(mine: Sequence[SpaceDigest], theirs: Sequence[SpaceDigest]) -> str:
    here = {one.name: one.digest for one in mine}
    there = {one.name: one.digest for one in theirs}
    if here.keys() != there.keys():
        return (
            f"this overlay has the spaces {', '.join(sorted(here)) or 'none'}, you have "
            f"{', '.join(sorted(there)) or 'none'}: all peers of an overlay need the same [[space]]"
        )
    for name, digest in here.items():
        if there[name] != digest:
            return (
                f"space {name} is declared differently here: all peers of an overlay need the "
                "same [[space]]"
            )
    return ""


def proof(key: bytes, role: str, caller: Hello, callee: Hello) -> bytes:
    """Return the proof that a side knows the key; `role` is `caller` or `callee`."""
    told = b"\0".join((role.encode(), encode_hello(caller), encode_hello(callee)))
    return hmac.new(key, told, hashlib.sha256).digest()


def is_proof(given: bytes, key: bytes, role: str, caller: Hello, callee: Hello) -> bool:
    """Return whether a proof is right."""
    return hmac.compare_digest(given, proof(key, role, caller, callee))


NO_PROOF = "your proof of the key is wrong: set the same key at all peers"
