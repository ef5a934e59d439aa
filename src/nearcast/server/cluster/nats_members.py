"""Membership: a list in NATS's key-value store into which every node writes its own entry.

An entry is written every second and expires after five. So a node that is killed is disconnected,
and its peers queue the messages that it must not miss. A node that leaves for good writes a mark
that stays until it joins again.

There are two buckets: entries of nodes, which expire, and permanent values (marks, and those of
`nats_settings.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from nearcast.config import NetworkSection
from nearcast.model.errors import KeyInUseError
from nearcast.nats.connection import NatsConnection, store_answers
from nearcast.server.cluster.cluster_keys import ClusterKeys, Signer, keys_of, signer_of
from nearcast.server.cluster.signed_entries import SignedEntries, split_entry

REFRESH_S = 1.0
EXPIRY_S = 5.0
TAKEN_BACK = -1
"""`DepartedMember.at_ms` of a mark that is removed."""
_LEFT = "left."
_LOOK_S = 0.4


class LinkState(msgspec.Struct, frozen=True):
    """The state of a node's link to a peer, as published in its entry."""

    is_up: bool = False
    skew_ms: float = 0.0
    delay_ms: float | None = None
    restarts: int = 0
    problem: str = ""
    is_direct: bool = False


class MemberName(msgspec.Struct, frozen=True):
    """A node's name; `identity` distinguishes it from another node with the same name."""

    name: str
    identity: str


class MemberRecord(MemberName, frozen=True, kw_only=True):
    """A node's entry in the list of members, as JSON: an object with these fields, in order."""

    addresses: list[str] = []
    speaks: tuple[int, int] = (1, 1)
    version: str = ""
    started_ms: int = 0
    spaces: str = ""
    clients: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    refused: int = 0
    links: dict[str, LinkState] = {}
    messages_sent: int = 0
    handovers: int = 0
    plan: int = 0
    unwanted: int = 0
    """Publications from peers for which there was no subscriber."""
    direct: str = ""
    """Where peers may connect directly, without NATS."""
    redirects_offered: int = 0
    """Clients that were offered another node."""
    redirects_followed: int = 0
    """Clients that went there."""
    load: int = 0
    """Of the leaves that it holds, in messages a minute; 0 without `[network] adapt`."""
    plans_proposed: int = 0
    """Plans that it proposed because a node was too busy."""


class DepartedMember(msgspec.Struct, frozen=True):
    """The mark of a node that has left: entries that started before `at_ms` are ignored.

    `at_ms` is `TAKEN_BACK` when the mark is removed.
    """

    name: str
    at_ms: int


class SignedDeparture(DepartedMember, frozen=True, kw_only=True):
    """A mark with the signature of the node itself, or of an operator."""

    signer: str = ""
    signature: str = ""


def is_signed_mark(keys: ClusterKeys, mark: DepartedMember) -> bool:
    """Return whether the node itself or an operator has signed a mark."""
    if not isinstance(mark, SignedDeparture):
        return False
    try:
        signer = signer_of(mark.signer)
    except ValueError:
        return False
    is_its_own = signer == Signer("node", mark.name)
    parts = ("left", mark.name, str(mark.at_ms))
    return (is_its_own or signer.kind == "operator") and keys.is_signed(
        signer, mark.signature, *parts
    )


_encode = msgspec.json.Encoder().encode
_decode_member = msgspec.json.Decoder(MemberRecord).decode
_decode_left = msgspec.json.Decoder(SignedDeparture).decode


def key_of(name: str) -> str:
    """Return a node's name as one token of a NATS subject.

    >>> key_of("berlin.3")
    'berlin=2E3'
    """
    return name.replace(".", "=2E")


def name_of(key: str) -> str:
    """Return the name for a token of `key_of`."""
    return key.replace("=2E", ".")


def bucket_name(section: NetworkSection, *, expires: bool) -> str:
    """Return the name of the bucket of entries that expire, or of permanent values."""
    return f"nearcast_{section.name}_{'nodes' if expires else 'kept'}"


async def open_bucket(
    client: NatsConnection, section: NetworkSection, *, expires: bool, creates: bool = True
) -> KeyValue:
    """Return the bucket of entries that expire, or of permanent values."""
    stream = client.jetstream(timeout=client.timeout_s)
    name = bucket_name(section, expires=expires)
    with store_answers(client):
        try:
            return await stream.key_value(name)
        except BucketNotFoundError:
            if not creates:
                raise KeyNotFoundError from None
            return await _create(stream, name, section.replicas, expires=expires)


async def _create(stream: JetStreamContext, name: str, replicas: int, *, expires: bool) -> KeyValue:
    return await stream.create_key_value(
        KeyValueConfig(
            bucket=name,
            history=1,
            ttl=EXPIRY_S if expires else None,
            storage=StorageType.MEMORY if expires else StorageType.FILE,
            replicas=replicas,
        )
    )


class Members:
    """One node's access to the member list: write its own entry, and watch the others."""

    def __init__(
        self,
        client: NatsConnection,
        nodes: KeyValue,
        kept: KeyValue,
        entries: SignedEntries | None = None,
    ) -> None:
        """`entries` signs and judges entries; without it no entry is signed, and all count."""
        self._client = client
        self._entries = entries or SignedEntries(None, _now_ms)
        self._nodes = nodes
        self._kept = kept
        self._revision: int | None = None  # of our entry; None: claim it first

    async def claim(self, me: MemberRecord) -> None:
        """Claim the name; raise KeyInUseError if a live node has it.

        An entry with another identity may be left by a killed node: it is watched until it changes
        (the node lives) or expires. One that is none, or that another has written, is replaced.
        """
        key, seen = key_of(me.name), None
        while True:
            with store_answers(self._client):
                holder, revision = await self._look(key)
                try:
                    if holder is None and revision:
                        self._revision = await self._nodes.put(key, self._written(me))
                        return
                    if holder is None:
                        self._revision = await self._nodes.create(key, self._written(me))
                        return
                    if holder.identity == me.identity:
                        entry, last = self._written(me), revision
                        self._revision = await self._nodes.update(key, entry, last=last)
                        return
                except KeyWrongLastSequenceError:
                    continue  # another writer was faster
            if seen is not None and revision != seen:
                raise _taken(holder)
            seen = revision
            await asyncio.sleep(_LOOK_S)

    async def _look(self, key: str) -> tuple[MemberRecord | None, int]:
        """Return the entry and its revision: 0 if there is none, no entry if it does not count."""
        try:
            entry = await self._nodes.get(key)
        except KeyNotFoundError:
            return None, 0
        return self._read(entry), int(entry.revision or 0)

    def _written(self, me: MemberRecord) -> bytes:
        return self._entries.seal(_encode(me))

    async def refresh(self, me: MemberRecord) -> None:
        """Write the entry again; claim the name again if the entry has expired."""
        if self._revision is None:
            await self.claim(me)
            return
        last, self._revision = self._revision, None  # after any failure: claim first
        with store_answers(self._client), contextlib.suppress(KeyWrongLastSequenceError):
            entry = self._written(me)
            self._revision = await self._nodes.update(key_of(me.name), entry, last=last)
        if self._revision is None:
            await self.claim(me)

    async def withdraw(self, name: str) -> None:
        """Delete the entry: the node is disconnected."""
        self._revision = None
        with store_answers(self._client):
            await self._nodes.delete(key_of(name))

    async def mark_left(self, name: str, at_ms: int) -> None:
        """Mark a node as having left for good."""
        mark, keys = DepartedMember(name, at_ms), self._entries.keys
        if keys is not None:
            signature = keys.sign("left", name, str(at_ms))
            mark = SignedDeparture(name, at_ms, signer=str(keys.me), signature=signature)
        with store_answers(self._client):
            await self._kept.put(_LEFT + key_of(name), _encode(mark))

    async def unmark_left(self, name: str) -> None:
        """Delete the mark, because the node joins again."""
        key = _LEFT + key_of(name)
        with store_answers(self._client):
            try:
                await self._kept.get(key)
            except KeyNotFoundError:
                return
            await self._kept.delete(key)

    async def changes(self) -> AsyncGenerator[MemberRecord | DepartedMember, None]:
        """Yield entries and marks: first all existing ones, then each change."""
        queue: asyncio.Queue[MemberRecord | DepartedMember | None] = asyncio.Queue()
        with store_answers(self._client):
            nodes = await self._nodes.watchall()
            kept = await self._kept.watch(_LEFT + "*")
        tasks = [
            asyncio.create_task(_pass_on(nodes, queue, self._told_of_node)),
            asyncio.create_task(_pass_on(kept, queue, _told_of_mark)),
        ]
        try:
            while (one := await queue.get()) is not None:
                yield one
        finally:
            for task in tasks:
                task.cancel()
            for watcher in (nodes, kept):
                with contextlib.suppress(NatsError):
                    await watcher.stop()  # type: ignore[no-untyped-call]

    def _told_of_node(self, entry: KeyValue.Entry) -> MemberRecord | None:
        return self._read(entry) if entry.operation is None else None

    def _read(self, entry: KeyValue.Entry) -> MemberRecord | None:
        return read_member(entry.value, self._entries, entry.key)


async def _pass_on(
    watcher: KeyValue.KeyWatcher,
    queue: asyncio.Queue[MemberRecord | DepartedMember | None],
    read: Callable[[KeyValue.Entry], MemberRecord | DepartedMember | None],
) -> None:
    async for entry in watcher:
        one = None if entry is None else read(entry)
        if one is not None:
            queue.put_nowait(one)
    queue.put_nowait(None)


def _told_of_mark(entry: KeyValue.Entry) -> DepartedMember | None:
    if entry.operation is None:
        return read_left(entry.value)
    return DepartedMember(name_of(entry.key.removeprefix(_LEFT)), TAKEN_BACK)


def read_member(
    data: bytes | None, entries: SignedEntries | None = None, key: str = ""
) -> MemberRecord | None:
    """Return a decoded entry; None if it is invalid, or does not count for these `entries`.

    One under the `key` of another node is invalid.
    """
    written = split_entry(data or b"")
    try:
        found = _decode_member(written.body)
    except msgspec.MsgspecError:
        return None
    if key and key_of(found.name) != key:
        return None
    return found if entries is None or entries.believes(found.name, written) else None


def _now_ms() -> int:
    return int(time.time() * 1000)


def read_left(data: bytes | None) -> DepartedMember | None:
    """Return a decoded mark; None if it is invalid."""
    try:
        found = _decode_left(data or b"")
        return found if found.signer else DepartedMember(found.name, found.at_ms)
    except msgspec.MsgspecError:
        return None


async def list_members(
    client: NatsConnection, section: NetworkSection, entries: SignedEntries | None = None
) -> list[MemberRecord]:
    """Return the entries of a network's nodes, by name; empty if there is no such network.

    `entries` judges them; without it those count that the keys of the section make count.
    """
    entries = entries or SignedEntries(keys_of(section), _now_ms)
    try:
        nodes = await open_bucket(client, section, expires=True, creates=False)
    except KeyNotFoundError:
        return []
    subjects = f"$KV.{bucket_name(section, expires=True)}."
    with store_answers(client):  # a watcher may report the end too early
        told = await client.jetstream(timeout=client.timeout_s).stream_info(
            f"KV_{bucket_name(section, expires=True)}", subjects_filter=f"{subjects}>"
        )
        keys = [one.removeprefix(subjects) for one in told.state.subjects or {}]
        found = await asyncio.gather(*(_entry(nodes, key, entries) for key in keys))
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


async def _entry(nodes: KeyValue, key: str, entries: SignedEntries) -> MemberRecord | None:
    try:
        return read_member((await nodes.get(key)).value, entries, key)
    except KeyNotFoundError:  # it has expired, or was deleted
        return None


def _taken(holder: MemberRecord | None) -> KeyInUseError:
    at = "" if holder is None else f" at {', '.join(holder.addresses)}"
    name = "" if holder is None else f"'{holder.name}' "
    return KeyInUseError(
        f"the name {name}is taken by a node{at}",
        where="network",
        todo="Choose another with --name.",
    )
