"""Bans: addresses, networks, users and client identifiers that may not connect, until an instant.

They are in a file of the data directory, which `nearcast ban` writes and the broker reads again
when it changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal, get_args

from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.server.auth.passwords import write_private

FILE_NAME = "bans.json"
BanKind = Literal["address", "user", "client"]


@dataclass(frozen=True, slots=True)
class Ban:
    """One ban; `until` is in seconds since 1970, None for ever."""

    kind: BanKind
    name: str
    until: float | None = None
    reason: str = ""

    def is_over(self, now_s: float) -> bool:
        """Return whether it has expired."""
        return self.until is not None and self.until <= now_s

    def text(self) -> str:
        """Return it for people."""
        when = "for ever"
        if self.until is not None:
            instant = datetime.fromtimestamp(self.until, UTC)
            when = f"until {instant.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
        return f"{self.kind} {self.name} {when}" + (f" ({self.reason})" if self.reason else "")


def checked_ban(kind: BanKind, name: str, until: float | None = None, reason: str = "") -> Ban:
    """Return a ban; MisuseError if the name is no name of its kind."""
    if not name or not name.isprintable():
        raise MisuseError(repr(name), where=f"--{kind}", expected="a name")
    if kind == "address":
        try:
            name = str(ip_network(name, strict=False))
        except ValueError:
            raise MisuseError(
                repr(name), where="--address", expected="an address, or a network as 10.0.0.0/8"
            ) from None
    return Ban(kind, name, until, reason)


def read_bans(path: Path) -> list[Ban]:
    """Return the bans of a file, expired ones too; none if there is no file."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise EnvironmentProblem(f"it cannot be read ({problem})", where=str(path)) from None
    except ValueError:
        raise FileFormatError("no JSON", where=str(path), expected="a list of bans") from None
    try:
        bans = [Ban(**one) for one in found["bans"]]
        for one in bans:
            is_time = one.until is None or isinstance(one.until, (int, float))
            if one.kind not in get_args(BanKind) or not is_time:
                raise FileFormatError(repr(one.kind), where=str(path), expected="a kind of ban")
            checked_ban(one.kind, one.name)
    except (KeyError, TypeError, AttributeError, MisuseError) as problem:
        raise FileFormatError(
            f"no list of bans ({problem})", where=str(path), todo="Write it with `nearcast ban`."
        ) from None
    return bans


def write_bans(path: Path, bans: Iterable[Ban]) -> None:
    """Replace the file; only its owner may read it."""
    rows = [asdict(one) for one in sorted(bans, key=lambda one: (one.kind, one.name))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, json.dumps({"bans": rows}, indent=1).encode() + b"\n")
    except OSError as problem:
        raise EnvironmentProblem(f"it cannot be written ({problem})", where=str(path)) from None


class BanList:
    """The bans in force.

    Complexity: O(1) for users, clients and single addresses; O(networks) for addresses.
    """

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self._names: dict[tuple[str, str], Ban] = {}
        self._networks: list[tuple[IPv4Network | IPv6Network, Ban]] = []
        for one in bans:
            self._names[one.kind, one.name] = one
            if one.kind == "address":
                self._networks.append((ip_network(one.name), one))

    def __bool__(self) -> bool:
        return bool(self._names)

    def find(self, address: str, user: str | None, client_id: str, now_s: float) -> Ban | None:
        """Return a ban that is in force against a connection."""
        keys = [("client", client_id), ("user", user or "")]
        for key in keys:
            found = self._names.get(key)
            if found is not None and not found.is_over(now_s):
                return found
        return self.find_address(address, now_s)

    def find_address(self, address: str, now_s: float) -> Ban | None:
        """Return a ban that is in force against an address."""
        if not self._networks:
            return None
        try:
            host = ip_address(address.partition("%")[0].strip("[]"))
        except ValueError:
            return None
        mapped = getattr(host, "ipv4_mapped", None)
        host = host if mapped is None else mapped
        for network, ban in self._networks:
            if host in network and not ban.is_over(now_s):
                return ban
        return None
