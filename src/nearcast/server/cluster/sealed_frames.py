"""Frames between nodes that have proven who they are: encrypted, whichever way they take.

    lesser name                                              greater name
       │── "prove1": number, its half of a key (X25519) ────────►│
       │◄── its half, signature of both halves and names ────────│
       │── "prove2": number, signature of both halves ──────────►│
       │◄── "ok" ────────────────────────────────────────────────│

The exchange is that of ISO/IEC 9798-3 with signatures (Ed25519) over both halves and both names:
each node knows then that the other has the key of its name, and that this was now. Frames are
encrypted with ChaCha20-Poly1305, under a key for each direction. A frame has its way (0: NATS, 1:
direct) and a number in front; numbers grow on each way, so that nothing can be played again.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from nearcast.server.cluster.cluster_keys import ClusterKeys, Signer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

NATS, DIRECT = 0, 1
_MOST_PENDING = 256  # exchanges that have begun and not ended, of all peers
_HEAD = 9


class Half(msgspec.Struct, frozen=True):
    """A message of the exchange: who sends it, its number, half of a key or a signature."""

    sender: str
    number: str
    half: str = ""
    signature: str = ""


@dataclass(slots=True)
class FrameKeys:
    """The keys that two nodes have agreed on."""

    sending: ChaCha20Poly1305
    receiving: ChaCha20Poly1305
    direct: str
    """What a direct connection introduces itself with."""
    sent: list[int] = field(default_factory=lambda: [0, 0])
    received: list[int] = field(default_factory=lambda: [0, 0])


class SealedFrames:
    """The keys of one node for frames to each of its peers.

    Contract: the node with the lesser name begins; `refuses` says of a frame why it was not opened.
    Complexity: O(bytes) per frame.
    """

    def __init__(self, keys: ClusterKeys) -> None:
        self._keys = keys
        self.name = keys.me.name
        self._agreed: dict[str, FrameKeys] = {}
        self._begun: dict[str, tuple[str, X25519PrivateKey]] = {}  # by us, by peer
        self._answered: OrderedDict[tuple[str, str], tuple[X25519PrivateKey, str]] = OrderedDict()
        self.refused = 0  # frames that could not be opened

    def knows(self, name: str) -> bool:
        """Return whether a node of this name may be a peer."""
        return Signer("node", name) in self._keys.public

    def has(self, name: str) -> bool:
        """Return whether frames to a peer can be encrypted."""
        return name in self._agreed

    def direct_key(self, name: str) -> str:
        """Return the secret of a pair for direct connections; "" without one."""
        found = self._agreed.get(name)
        return "" if found is None else found.direct

    def forget(self, name: str) -> None:
        """Drop what was agreed with a peer: it has started again, or left."""
        self._agreed.pop(name, None)
        self._begun.pop(name, None)

    # --- frames -----------------------------------------------------------------------------

    def seal(self, name: str, frame: bytes, way: int) -> bytes | None:
        """Return a frame encrypted for a peer; None if nothing is agreed yet."""
        found = self._agreed.get(name)
        if found is None:
            return None
        found.sent[way] += 1
        head = bytes((way,)) + found.sent[way].to_bytes(8, "big")
        return head + found.sending.encrypt(_nonce(head), frame, head)

    def open(self, name: str, data: bytes, way: int) -> bytes | None:
        """Return the frame of a peer; None if it is not the peer's, or comes again."""
        from cryptography.exceptions import InvalidTag

        found, head = self._agreed.get(name), data[:_HEAD]
        if found is None or len(head) < _HEAD or head[0] != way:
            self.refused += 1
            return None
        number = int.from_bytes(head[1:], "big")
        try:
            if number <= found.received[way]:
                raise InvalidTag
            frame = found.receiving.decrypt(_nonce(head), data[_HEAD:], head)
        except InvalidTag:
            self.refused += 1
            return None
        found.received[way] = number
        return frame

    # --- the exchange -----------------------------------------------------------------------

    def begin(self, name: str, number: str) -> bytes:
        """Return the first message to a peer; `number` was never used before."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = X25519PrivateKey.generate()
        self._begun[name] = (number, private)
        return b"prove1 " + msgspec.json.encode(Half(self.name, number, public_half(private)))

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a first message; None to one of nobody that we know."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        first = _decoded(data)
        if first is None or not self.knows(first.sender) or not first.sender < self.name:
            return None
        private = X25519PrivateKey.generate()
        self._answered[first.sender, first.number] = (private, first.half)
        while len(self._answered) > _MOST_PENDING:
            self._answered.popitem(last=False)
        mine = public_half(private)
        signature = self._keys.sign(*_transcript("answer", first.sender, self.name, first, mine))
        return msgspec.json.encode(Half(self.name, first.number, mine, signature))

    def confirm(self, name: str, data: bytes) -> bytes | None:
        """Return the last message to a peer that has answered; None if that was not the peer."""
        begun, answer = self._begun.get(name), _decoded(data)
        if begun is None or answer is None or answer.number != begun[0]:
            return None
        first = Half(self.name, begun[0], public_half(begun[1]))
        parts = _transcript("answer", self.name, name, first, answer.half)
        if not self._keys.is_signed(Signer("node", name), answer.signature, *parts):
            return None
        agreed = agree(begun[1], answer.half, first.half, answer.half, is_lesser=True)
        if agreed is None:
            return None
        del self._begun[name]
        self._agreed[name] = agreed
        signature = self._keys.sign(*_transcript("confirm", self.name, name, first, answer.half))
        last = Half(self.name, first.number, signature=signature)
        return b"prove2 " + msgspec.json.encode(last)

    def accept(self, data: bytes) -> str:
        """Return the name of the peer that a last message proves; "" if it proves none."""
        last = _decoded(data)
        pending = None if last is None else self._answered.get((last.sender, last.number))
        if last is None or pending is None:
            return ""
        private, half = pending
        first, mine = Half(last.sender, last.number, half), public_half(private)
        parts = _transcript("confirm", last.sender, self.name, first, mine)
        if not self._keys.is_signed(Signer("node", last.sender), last.signature, *parts):
            return ""
        agreed = agree(private, half, half, mine, is_lesser=False)
        if agreed is None:
            return ""
        del self._answered[last.sender, last.number]  # not before: anybody may send a wrong one
        self._agreed[last.sender] = agreed
        return last.sender


def _transcript(what: str, lesser: str, greater: str, first: Half, half: str) -> tuple[str, ...]:
    return ("link 1", what, lesser, greater, first.number, first.half, half)


def public_half(private: X25519PrivateKey) -> str:
    """Return the half of a key that the other side gets."""
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


def _decoded(data: bytes) -> Half | None:
    try:
        return msgspec.json.decode(data.partition(b" ")[2] if data[:1] != b"{" else data, type=Half)
    except msgspec.MsgspecError:
        return None


def agree(
    private: X25519PrivateKey, other: str, first: str, second: str, *, is_lesser: bool
) -> FrameKeys | None:
    """Return the keys of two halves, of which `first` is the lesser's; None if one is no half."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        half = X25519PublicKey.from_public_bytes(base64.b64decode(other, validate=True))
        secret = private.exchange(half)
    except ValueError:
        return None
    derive = HKDF(SHA256(), 96, salt=(first + second).encode(), info=b"nearcast link 1")
    keys = derive.derive(secret)
    ours, theirs = (keys[:32], keys[32:64]) if is_lesser else (keys[32:64], keys[:32])
    return FrameKeys(ChaCha20Poly1305(ours), ChaCha20Poly1305(theirs), keys[64:].hex())


def _nonce(head: bytes) -> bytes:
    return bytes(3) + head
