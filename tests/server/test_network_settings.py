"""Settings that the nodes of a network share through NATS."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.support.nats_members import settings_of

from nearcast.config import NetworkSection
from nearcast.model.errors import (
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
)
from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster import nats_settings
from nearcast.server.cluster.nats_members import (
    open_bucket,
)
from nearcast.server.cluster.nats_settings import Shared

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("_lasting_entries")]


async def test_settings_have_versions_and_come_back_whole(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nats_settings, "_PIECE_BYTES", 1_000)
    settings = await settings_of(client, section)
    values = [b"", b"one", b"one", random.Random(1).randbytes(12_345), b"x" * 1_000]

    for version, data in enumerate(values, start=1):
        head = await settings.put("plan", data, at_ms=version)
        assert (head.version, head.at_ms) == (version, version)
        assert (await settings.get("plan")).data == data
    with pytest.raises(KeyMissingError, match="no 'policies'"):
        await settings.get("policies")


async def test_of_two_writers_the_second_is_told_and_changes_nothing(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    await settings.put("plan", b"first", at_ms=1, expected=0)

    with pytest.raises(KeyInUseError, match="version 1"):
        await settings.put("plan", b"second", at_ms=2, expected=0)
    results = await asyncio.gather(
        *(settings.put("plan", bytes([n]), at_ms=n, expected=1) for n in range(5)),
        return_exceptions=True,
    )

    assert sum(isinstance(one, KeyInUseError) for one in results) == 4
    winner = next(one for one in results if not isinstance(one, BaseException))
    now = await settings.get("plan")
    assert now.head == winner
    assert now.data == bytes([winner.at_ms])


async def test_a_writer_that_was_overtaken_while_it_wrote_is_told(
    client: NatsConnection, section: NetworkSection, monkeypatch: pytest.MonkeyPatch
):
    slow, quick = [await settings_of(client, section) for _ in range(2)]
    put = slow._kept.put

    async def put_after_somebody_else(key: str, value: bytes) -> int:
        await quick.put("plan", b"quick", at_ms=2)
        return await put(key, value)

    monkeypatch.setattr(slow._kept, "put", put_after_somebody_else)
    with pytest.raises(KeyInUseError):
        await slow.put("plan", b"slow", at_ms=1)
    assert (await slow.get("plan")).data == b"quick"


async def test_a_damaged_value_is_an_error_and_never_data(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    kept = await open_bucket(client, section, expires=False)
    head = await settings.put("plan", b"right", at_ms=1)
    key = nats_settings._piece_key(head, 0)

    await kept.put(key, b"wrong")
    with pytest.raises(FileFormatError, match="another digest"):
        await settings.get("plan")
    await kept.purge(key)
    with pytest.raises(FileFormatError, match="piece 1 of 1 is missing"):
        await settings.get("plan")
    await kept.put("shared.plan", b"{")
    with pytest.raises(FileFormatError, match="network settings, plan"):
        await settings.get("plan")


async def test_who_watches_gets_each_value_and_hears_of_bad_ones(
    client: NatsConnection, section: NetworkSection
):
    settings = await settings_of(client, section)
    kept = await open_bucket(client, section, expires=False)
    await settings.put("plan", b"1", at_ms=1)
    watch = settings.watch("plan")

    first = await anext(watch)
    await kept.put("shared.plan", b"nonsense")
    bad = await anext(watch)
    await settings.put("plan", b"in place of nonsense", at_ms=1)
    mended = await anext(watch)
    await kept.delete("shared.plan")
    await settings.put("other", b"not asked for", at_ms=2)
    await settings.put("plan", b"2", at_ms=2)
    second = await anext(watch)
    await watch.aclose()

    assert isinstance(first, Shared)
    assert first.data == b"1"
    assert isinstance(bad, FileFormatError)
    assert isinstance(mended, Shared)
    assert isinstance(second, Shared)
    assert second.data == b"2"
