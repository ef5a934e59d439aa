"""Values that all nodes of a network share: plan, schedule of plans, policies, histograms.

Versioned, any length.

A value is split into pieces under their own keys, which are written first. The head names version,
length and digest; it is written last, and only if no other writer has changed it meanwhile. So a
reader sees either the old value or the new one, complete.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
    MisuseError,
    NearcastError,
)
from nearcast.nats.connection import NatsConnection, store_answers
from nearcast.server.cluster.cluster_keys import keys_of, signer_of

PLAN, POLICIES, HISTOGRAMS, SCHEDULE = "plan", "policies", "histograms", "schedule"
_PIECE_BYTES = 512 << 10
_HEADS, _PIECES = "shared.", "piece."


class SharedVersion(msgspec.Struct, frozen=True):
    """The head of the current value; `version` grows by one with each value."""

    name: str
    version: int
    size: int
    digest: str
    pieces: int
    at_ms: int = 0


class SignedVersion(SharedVersion, frozen=True, kw_only=True):
    """A head with the signature of whoever has shared the value."""

    signer: str = ""
    signature: str = ""


class Shared(msgspec.Struct, frozen=True):
    """A value that all nodes share."""

    head: SharedVersion
    data: bytes


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SignedVersion).decode
_OF_NODES = (PLAN, SCHEDULE)  # nodes propose plans, and make changes by the clock


class SharedSettings:
    """Shared values by name, in the bucket of permanent values."""

    def __init__(
        self, client: NatsConnection, kept: KeyValue, section: NetworkSection | None = None
    ) -> None:
        """Without keys in the `section`, only a network of this machine is trusted."""
        self._client = client
        self._kept = kept
        self._keys = None if section is None else keys_of(section)
        self._is_open = section is None or section.is_local or section.insecure

    async def put(
        self, name: str, data: bytes, *, at_ms: int, expected: int | None = None
    ) -> SharedVersion:
        """Replace a value, if its version is still `expected` (None: any).

        The slower of two writers gets a KeyInUseError, and its write has no effect.
        """
        with store_answers(self._client):
            text, revision = await self._entry(name)
        old = _head_or_none(text, name)
        version = 0 if old is None else old.version
        if expected is not None and expected != version:
            raise _outrun(name, version, expected)
        if old is not None and isinstance(old, SignedVersion) and self._is_trusted(old):
            at_ms = max(at_ms, old.at_ms + 1)  # nodes refuse what is older; clocks may be apart
        digest = hashlib.sha256(data).hexdigest()
        count = -(-len(data) // _PIECE_BYTES)
        head = self._signed(SharedVersion(name, version + 1, len(data), digest, count, at_ms))
        with store_answers(self._client):
            for index in range(count):
                piece = data[index * _PIECE_BYTES : (index + 1) * _PIECE_BYTES]
                await self._kept.put(_piece_key(head, index), piece)
            try:
                await self._kept.update(_HEADS + name, _encode(head), last=revision)
            except KeyWrongLastSequenceError:
                raise _outrun(name, version + 1, version) from None
            if old is not None and old.digest != digest:
                await self._drop_pieces(old)
        return head

    def _signed(self, head: SharedVersion) -> SharedVersion:
        """Return a head with a signature; MisuseError where nodes would refuse one without."""
        keys = self._keys
        if keys is None:
            if not self._is_open:
                raise _unsigned(head, MisuseError)
            return head
        signature = keys.sign(*_parts(head))
        return SignedVersion(
            *msgspec.structs.astuple(head), signer=str(keys.me), signature=signature
        )

    def _is_trusted(self, head: SharedVersion) -> bool:
        """Return whether somebody who may share a value has signed it, where that is needed."""
        keys = self._keys
        if keys is None:
            return self._is_open
        if not isinstance(head, SignedVersion):
            return False
        try:
            signer = signer_of(head.signer)
        except ValueError:
            return False
        may = signer.kind == "operator" or head.name in _OF_NODES
        return may and keys.is_signed(signer, head.signature, *_parts(head))

    async def version(self, name: str) -> int:
        """Return the version that `put` replaces; 0 if there is no value, or no head to read."""
        with store_answers(self._client):
            text, _ = await self._entry(name)
        head = _head_or_none(text, name)
        return 0 if head is None else head.version

    async def get(self, name: str) -> Shared:
        """Return a value; KeyMissingError if there is none, FileFormatError if it is damaged."""
        with store_answers(self._client):
            text, _ = await self._entry(name)
            if text is None:
                raise KeyMissingError(f"no '{name}'", where="network settings")
            return await self._read(_read_head(text, name))

    async def watch(self, name: str) -> AsyncGenerator[Shared | FileFormatError, None]:
        """Yield the current value and each new one; a damaged one as the error."""
        with store_answers(self._client):
            watcher = await self._kept.watch(_HEADS + name)
        try:
            async for entry in watcher:
                if entry is None or entry.operation is not None:
                    continue
                yield await self._read_or_tell(entry.value, name)
        finally:
            with contextlib.suppress(NatsError):
                await watcher.stop()  # type: ignore[no-untyped-call]

    async def _read_or_tell(self, head: bytes | None, name: str) -> Shared | FileFormatError:
        try:
            with store_answers(self._client):
                return await self._read(_read_head(head, name))
        except FileFormatError as problem:
            return problem

    async def _entry(self, name: str) -> tuple[bytes | None, int]:
        """Return the stored head, and the revision that a writer must name."""
        try:
            entry = await self._kept.get(_HEADS + name)
        except KeyNotFoundError as problem:
            deleted = problem.entry
            return None, 0 if deleted is None else int(deleted.revision or 0)
        return entry.value or b"", int(entry.revision or 0)

    async def _read(self, head: SharedVersion) -> Shared:
        if not self._is_trusted(head):
            raise _unsigned(head, FileFormatError)
        parts = []
        for index in range(head.pieces):
            try:
                parts.append((await self._kept.get(_piece_key(head, index))).value or b"")
            except KeyNotFoundError:
                raise _damaged(head, f"piece {index + 1} of {head.pieces} is missing") from None
        data = b"".join(parts)
        if len(data) != head.size or hashlib.sha256(data).hexdigest() != head.digest:
            raise _damaged(head, f"{len(data)} bytes with another digest")
        return Shared(head, data)

    async def _drop_pieces(self, head: SharedVersion) -> None:
        for index in range(head.pieces):
            await self._kept.purge(_piece_key(head, index))


def _parts(head: SharedVersion) -> tuple[str, ...]:
    numbers = (head.version, head.size, head.pieces, head.at_ms)
    return ("shared", head.name, head.digest, *map(str, numbers))


def _unsigned(head: SharedVersion, kind: type[NearcastError]) -> NearcastError:
    return kind(
        "no signature of somebody who may share it",
        where=f"network settings, {head.name}, version {head.version}",
        todo="Give node_key and node_keys in [network] (nearcast keys new), or insecure = true.",
    )


def _piece_key(head: SharedVersion, index: int) -> str:
    """Return the key of a piece, by content: pieces of two writers never mix."""
    return f"{_PIECES}{head.name}.{head.digest[:32]}.{index}"


def _read_head(data: bytes | None, name: str) -> SharedVersion:
    try:
        found = _decode(data or b"")
        return found if found.signer else SharedVersion(*msgspec.structs.astuple(found)[:6])
    except msgspec.MsgspecError as problem:
        raise FileFormatError(str(problem), where=f"network settings, {name}") from None


def _head_or_none(data: bytes | None, name: str) -> SharedVersion | None:
    """Return the head to replace; None for a damaged one."""
    try:
        return None if data is None else _read_head(data, name)
    except FileFormatError:
        return None


def _damaged(head: SharedVersion, found: str) -> FileFormatError:
    where = f"network settings, {head.name}, version {head.version}"
    return FileFormatError(found, where=where, expected=f"{head.size} bytes, {head.digest[:12]}…")


def _outrun(name: str, version: int, expected: int) -> KeyInUseError:
    return KeyInUseError(
        f"'{name}' is at version {version} or later",
        where="network settings",
        expected=f"version {expected}",
        todo="Look at it, then try again.",
    )
