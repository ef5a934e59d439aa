"""Answers of nodes that only the asker can read: NATS shows answers to whoever may read it.

The asker signs half of a key (X25519) with its request; the node answers with its own half, a
signature of both, and the answer encrypted under the key of the two. A request that a stranger
sends again is answered for the first asker all the same.
"""

from __future__ import annotations

import base64

import msgspec

from nearcast.server.cluster.cluster_keys import ClusterKeys, SignedRequest, Signer
from nearcast.server.cluster.sealed_frames import agree, public_half

_ONCE = bytes(12)  # the key is used for one answer


class SealedAnswer(msgspec.Struct, frozen=True):
    """An answer as it is sent."""

    half: str
    signature: str
    data: str


class SealedQuestion:
    """A signed request to a node, and what reads the answer."""

    def __init__(self, keys: ClusterKeys, verb: str, to: str, at_ms: int) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._keys, self._to = keys, to
        self._private = X25519PrivateKey.generate()
        self._half = public_half(self._private)
        self.data = keys.request(verb, to, at_ms, self._half)

    def read(self, answer: bytes) -> bytes | None:
        """Return what the node has answered; None if it was not the node."""
        from cryptography.exceptions import InvalidTag

        try:
            found = msgspec.json.decode(answer, type=SealedAnswer)
        except msgspec.MsgspecError:
            return None
        parts = ("answer", self._to, self._half, found.half)
        if not self._keys.is_signed(Signer("node", self._to), found.signature, *parts):
            return None
        agreed = agree(self._private, found.half, self._half, found.half, is_lesser=True)
        try:
            data = base64.b64decode(found.data, validate=True)
            return None if agreed is None else agreed.receiving.decrypt(_ONCE, data, b"")
        except (ValueError, InvalidTag):
            return None


def sealed_answer(keys: ClusterKeys, request: bytes, answer: bytes) -> bytes | None:
    """Return an answer to a request that was checked; None if it has no half of a key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    theirs = msgspec.json.decode(request.partition(b" ")[2], type=SignedRequest).half
    private = X25519PrivateKey.generate()
    mine = public_half(private)
    agreed = agree(private, theirs, theirs, mine, is_lesser=False)
    if agreed is None:
        return None
    signature = keys.sign("answer", keys.me.name, theirs, mine)
    data = base64.b64encode(agreed.sending.encrypt(_ONCE, answer, b"")).decode()
    return msgspec.json.encode(SealedAnswer(mine, signature, data))
