"""The section about the page in the browser and the HTTP API."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.values import FilePath, split_address

OFF = "off"
_DEFAULT = "127.0.0.1:8080"
_EXAMPLE = "'127.0.0.1:8080' or '[::1]:8080'"


def is_tile_file(tiles: str) -> bool:
    """Return whether the setting `tiles` names a file, not an address.

    >>> is_tile_file("maps/city.pmtiles"), is_tile_file("https://a/{z}/{x}/{y}.pmtiles")
    (True, False)
    """
    return tiles.endswith(".pmtiles") and "://" not in tiles


class HttpSection(Section):
    """The page in the browser, the HTTP API and `/metrics`, on one address: docs/http-api.md.

    Without `operators` it answers this machine only, shows no client's position, and changes
    nothing. Other machines are answered only with `operators`.
    """

    address: str = setting(
        _DEFAULT,
        'HOST:PORT, or "off"; the default is left out where another program has the port',
    )
    operators: FilePath | None = setting(
        None,
        "who may log in: nearcast passwd operators.txt ann --role operator",
        reload=True,
        example='"operators.txt"',
    )
    positions: bool = setting(
        True, "false: positions of clients are shown to nobody, not even to operators", reload=True
    )
    hosts: list[str] = setting(
        [],
        'names under which browsers reach it, besides localhost: ["nearcast.example.org"]',
        reload=True,
    )
    tiles: str | None = setting(
        None,
        "map tiles below the clients: a file .pmtiles, or an address that browsers then ask",
        reload=True,
        example='"https://tiles.example.org/{z}/{x}/{y}.png"',
    )
    certificate: FilePath | None = setting(None, "its certificate: https", example='"server.pem"')
    key: FilePath | None = setting(None, "private key of `certificate`", example='"server.key"')

    @field_validator("address")
    @classmethod
    def _address_has_a_port(cls, value: str) -> str:
        if value != OFF:
            split_address(value, f"{_EXAMPLE}, or 'off'")
        return value

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, value: list[str]) -> list[str]:
        for one in value:
            if not one or any(sign in one for sign in "/:@ "):
                msg = f"'{one}' is no name of a host, without scheme and port"
                raise ValueError(msg)
        return [one.lower() for one in value]

    @field_validator("tiles")
    @classmethod
    def _tiles_are_an_address_or_a_file(cls, value: str | None) -> str | None:
        if value is not None and not is_tile_file(value):
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or "{z}" not in value:
                msg = f"'{value}' is no file .pmtiles, and no address such as https://tiles.example.org/{{z}}/{{x}}/{{y}}.png"
                raise ValueError(msg)
            if any(sign in parts.netloc for sign in "; ,'\""):
                msg = f"'{parts.netloc}' is no name of a host"
                raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _others_must_log_in(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            msg = "'certificate' and 'key' come together"
            raise ValueError(msg)
        if not (self.is_off or self.is_loopback) and self.operators is None:
            msg = f"'address' is {self.address}: other machines are answered only with 'operators'"
            raise ValueError(msg)
        return self

    @property
    def is_off(self) -> bool:
        """Return whether nothing listens."""
        return self.address == OFF

    @property
    def is_default(self) -> bool:
        """Return whether it is the default, written out (as `nearcast init` does) or not."""
        return self.address == _DEFAULT

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Return the address in its two parts."""
        return split_address(self.address, _EXAMPLE)

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        host = self.host_and_port[0]
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False
