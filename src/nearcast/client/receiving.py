"""Decodes what the broker adds: the rank of a delivery, the list of matches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nearcast.model.errors import PeerProtocolError
from nearcast.model.wording import shown


@dataclass(frozen=True, slots=True)
class Delivered:
    """Rank and distance of a delivery, for a subscription with `explain=True`."""

    rank: int | None = None  # 1 is the best
    distance_m: float | None = None


@dataclass(frozen=True, slots=True)
class RankedMatch:
    """One matching subscription in an answer to `reply="matches"`."""

    rank: int
    label: str | None
    accuracy: float | None  # in bits; less is narrower
    distance_m: float | None


def delivered(properties: Any) -> Delivered:
    """Return rank and distance of a message, from its paho properties or from pairs.

    Without a space the publisher's own `$rank` passes through unchanged; it is ignored here.

    >>> delivered([("$rank", "2"), ("$distance", "118.5"), ("colour", "red")])
    Delivered(rank=2, distance_m=118.5)
    >>> delivered(None)
    Delivered(rank=None, distance_m=None)
    """
    pairs = getattr(properties, "UserProperty", properties)
    named: dict[str, str] = dict(_pairs(pairs))
    rank, distance = named.get("$rank", ""), named.get("$distance", "")
    return Delivered(
        int(rank) if rank.isdecimal() else None,
        float(distance) if distance.replace(".", "", 1).isdecimal() else None,
    )


def _pairs(pairs: object) -> Iterable[tuple[str, str]]:
    return pairs if isinstance(pairs, (list, tuple)) else ()


def ranked_matches(payload: bytes) -> list[RankedMatch]:
    """Return the matches of an answer to `Offer(reply="matches")`, best first."""
    try:
        rows = json.loads(payload)["matches"]
        return [
            RankedMatch(
                int(row["rank"]), row.get("label"), row.get("accuracy"), row.get("distance_m")
            )
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PeerProtocolError(
            shown(payload), where="a ranked reply", expected='JSON: {"matches": […]}'
        ) from None
