"""The section about a peer of an overlay without servers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.values import Bytes, FilePath, Seconds, split_address

_EXAMPLE = "'10.0.0.7:7000' or '[::1]:7000'"


class PeerSection(Section):
    """A peer of an overlay without servers: for 'nearcast peer', see docs/peers.md.

    `method`, `histograms`, `beat`, `cache`, `spread` and spaces must be the same at all its peers.
    """

    listen: str = setting("127.0.0.1:7000", "HOST:PORT where other peers connect to this one")
    address: str | None = setting(
        None, "HOST:PORT that other peers use, if it is another one", example='"edge7:7000"'
    )
    contacts: list[str] = setting(
        [], 'other peers to join through, such as ["10.0.0.7:7000"]; none: this one is the first'
    )
    key: FilePath | None = setting(
        None, "file with a key that all peers share", example='"overlay.key"'
    )
    certificate: FilePath | None = setting(
        None, "certificate of this peer: connections are encrypted", example='"peer.pem"'
    )
    certificate_key: FilePath | None = setting(None, "its private key", example='"peer.key"')
    authority: FilePath | None = setting(
        None, "peers must present a certificate signed by this one", example='"peers.pem"'
    )
    method: Literal["exact", "measured", "RS", "LVS", "CES"] = setting(
        "exact", "how a group elects its host: exact, measured, RS, LVS, CES"
    )
    histograms: FilePath | None = setting(
        None,
        "directory of 'nearcast pipeline histogram': events count in elections, not volume",
        example='"city"',
    )
    beat: Annotated[Seconds, Field(ge=0.05, le=60)] = setting(
        1.0, "pause between heartbeats; a peer that is silent for 3.5 of them is given up"
    )
    cache: int = setting(
        0,
        "events in vain that a host remembers for each branch; pays if values repeat ten times",
        ge=0,
        le=100_000,
    )
    spread: float = setting(
        0,
        "a host whose overhead is so many times that of a member hands its group over; 0: never",
        ge=0,
        le=1_000,
        allow_inf_nan=False,
    )
    boxes: int = setting(4, "boxes around the subscriptions of all clients, at most", ge=1, le=64)
    looseness: float = setting(
        0.25,
        "how much larger a box may be than the subscriptions in it; 0: not at all",
        ge=0,
        le=1_000,
        allow_inf_nan=False,
    )
    federation: str = setting(
        "peers", "name of this overlay for bridges: of those with one name a single one works"
    )
    links: int = setting(256, "connections to other peers, at most", ge=2, le=10_000)
    message: Annotated[Bytes, Field(ge=65_536, le=1 << 28)] = setting(
        4 << 20, "the largest message between peers"
    )
    queue: Bytes = setting(8 << 20, "bytes that may wait for a peer that reads slowly")

    @field_validator("listen", "address")
    @classmethod
    def _address_has_a_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value, _EXAMPLE)
        return value

    @field_validator("contacts")
    @classmethod
    def _contacts_have_ports(cls, value: list[str]) -> list[str]:
        for one in value:
            split_address(one, _EXAMPLE)
        return value

    @field_validator("spread")
    @classmethod
    def _spread_is_a_factor(cls, value: float) -> float:
        if 0 < value <= 1:
            msg = f"'spread' is {value:g}: expected 0, or more than 1"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        files = (self.certificate, self.certificate_key, self.authority)
        if any(files) and not all(files):
            msg = "'certificate', 'certificate_key' and 'authority' come together"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _others_can_connect(self) -> Self:
        host, _ = split_address(self.listen, _EXAMPLE)
        if self.address is None and host in ("0.0.0.0", "::"):  # noqa: S104 - compared
            msg = f"'listen' is {self.listen}: set 'address', too, since others need one to use"
            raise ValueError(msg)
        return self
