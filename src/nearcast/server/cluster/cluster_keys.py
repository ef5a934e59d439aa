"""The keys of a cluster: each node and each operator signs with its own; all know the public ones.

A private key is a PEM file (Ed25519) whose first line says whose it is: `# node berlin`. The public
keys of all are lines of one file: `node berlin KEY`, `operator alice KEY`, in base64.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import msgspec

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

FRESH_MS = 60_000
"""How old a signed request may be."""
KeyKind = Literal["node", "operator"]


class Signer(NamedTuple):
    """Whose key it is."""

    kind: KeyKind
    name: str

    def __str__(self) -> str:
        """Return it as the files have it."""
        return f"{self.kind} {self.name}"


class SignedRequest(msgspec.Struct, frozen=True):
    """What stands behind the verb of a request to a node.

    `half` is half of a key, where the answer is to be read by the asker alone.
    """

    signer: str
    at_ms: int
    signature: str
    half: str = ""


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """This process's private key, and the public keys of all."""

    network: str
    me: Signer
    private: Ed25519PrivateKey
    public: dict[Signer, Ed25519PublicKey]

    def sign(self, *parts: str) -> str:
        """Return a signature of texts in this network."""
        return base64.b64encode(self.private.sign(_bytes(self.network, parts))).decode()

    def is_signed(self, signer: Signer, signature: str, *parts: str) -> bool:
        """Return whether a known signer has signed these texts in this network."""
        from cryptography.exceptions import InvalidSignature

        key = self.public.get(signer)
        if key is None:
            return False
        try:
            key.verify(base64.b64decode(signature, validate=True), _bytes(self.network, parts))
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True

    def request(self, verb: str, to: str, at_ms: int, half: str = "") -> bytes:
        """Return a signed request to a node."""
        signature = self.sign("request", verb, to, str(at_ms), half)
        signed = SignedRequest(str(self.me), at_ms, signature, half)
        return verb.encode() + b" " + msgspec.json.encode(signed)

    def may_ask(
        self, data: bytes, to: str, now_ms: int, *, only_operators: bool, since_ms: int = 0
    ) -> bool:
        """Return whether a request to a node is signed, fresh, and of somebody who may ask it.

        One from before `since_ms`, when the node started, was for its run before.
        """
        verb, _, rest = data.partition(b" ")
        try:
            found = msgspec.json.decode(rest, type=SignedRequest)
            signer = signer_of(found.signer)
        except (msgspec.MsgspecError, ValueError):
            return False
        if abs(now_ms - found.at_ms) > FRESH_MS or (only_operators and signer.kind != "operator"):
            return False
        if found.at_ms < since_ms:
            return False
        parts = ("request", verb.decode("latin-1"), to, str(found.at_ms), found.half)
        return self.is_signed(signer, found.signature, *parts)


def signer_of(text: str) -> Signer:
    """Return the signer of `node berlin`; ValueError if it is none."""
    kind, _, name = text.partition(" ")
    if kind not in get_args(KeyKind) or not name or " " in name:
        msg = f"{text!r} is no 'node NAME' or 'operator NAME'"
        raise ValueError(msg)
    return Signer(kind, name)  # type: ignore[arg-type]


def _bytes(network: str, parts: tuple[str, ...]) -> bytes:
    """Return texts as bytes in one way only: each behind its length."""
    texts = [one.encode() for one in ("nearcast", network, *parts)]
    return b"".join(len(one).to_bytes(4, "big") + one for one in texts)


def keys_of(section: NetworkSection) -> ClusterKeys | None:
    """Return the keys of a configuration; None if it has none."""
    if section.node_key is None or section.node_keys is None:
        return None
    return _read(section.name, section.node_key, section.node_keys)


@lru_cache(maxsize=8)
def _read(network: str, private: Path, public: Path) -> ClusterKeys:
    _check_library()
    me, key = read_private(private)
    known = read_public(public)
    if known.get(me) is None or _raw(known[me]) != _raw(key.public_key()):
        raise MisuseError(
            f"no key of {me}, or another one", where=str(public), expected=f"that of {private}"
        )
    return ClusterKeys(network, me, key, known)


def _check_library() -> None:
    if find_spec("cryptography") is None:
        raise EnvironmentProblem(
            "keys of nodes need cryptography, which is not installed",
            where="[network] node_key",
            todo="pip install 'nearcast[keys]'",
        )


def read_private(path: Path) -> tuple[Signer, Ed25519PrivateKey]:
    """Return whose a private key is, and the key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        data = path.read_bytes()
    except OSError as problem:
        raise EnvironmentProblem(str(problem.strerror), where=str(path)) from None
    head, _, pem = data.partition(b"\n")
    try:
        signer = signer_of(head.decode().removeprefix("# "))
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError) as problem:
        todo = "Write it with nearcast keys new."
        raise FileFormatError(f"no key ({problem})", where=str(path), todo=todo) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise FileFormatError("another kind of key", where=str(path), expected="Ed25519")
    return signer, key


def read_public(path: Path) -> dict[Signer, Ed25519PublicKey]:
    """Return the public keys of a file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise EnvironmentProblem(str(problem), where=str(path)) from None
    found: dict[Signer, Ed25519PublicKey] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        whose, _, text = line.strip().rpartition(" ")
        try:
            signer = signer_of(whose)
            key = Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        except ValueError:
            raise FileFormatError(
                f"line {number}", where=str(path), expected="node NAME KEY or operator NAME KEY"
            ) from None
        if signer in found:
            raise FileFormatError(f"{signer} twice", where=f"{path}, line {number}")
        found[signer] = key
    return found


def _raw(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def public_line(path: Path) -> str:
    """Return the line with the public key of a private key's file."""
    _check_library()
    signer, key = read_private(path)
    return f"{signer} {base64.b64encode(_raw(key.public_key())).decode()}"


def new_key(path: Path, signer: Signer) -> str:
    """Write a new private key; return the line with its public key."""
    _check_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as problem:
        raise EnvironmentProblem(str(problem.strerror), where=str(path)) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(f"# {signer}\n".encode() + pem)
    return public_line(path)
