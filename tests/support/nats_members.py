"""What tests ask of a network's member list in NATS."""

from __future__ import annotations

from nearcast.config import NetworkSection
from nearcast.nats.connection import NatsConnection
from nearcast.server.cluster.nats_members import Members, list_members, open_bucket
from nearcast.server.cluster.nats_settings import SharedSettings


async def members_of(client: NatsConnection, section: NetworkSection) -> Members:
    nodes = await open_bucket(client, section, expires=True)
    kept = await open_bucket(client, section, expires=False)
    return Members(client, nodes, kept)


async def settings_of(client: NatsConnection, section: NetworkSection) -> SharedSettings:
    return SharedSettings(client, await open_bucket(client, section, expires=False))


async def names(client: NatsConnection, section: NetworkSection) -> list[str]:
    return [one.name for one in await list_members(client, section)]
