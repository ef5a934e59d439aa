"""The tree of an overlay as peers report it: found peer by peer, shown as text or as a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import msgspec

from nearcast.model.errors import EnvironmentProblem
from nearcast.server.overlay.links import LinkSettings, PeerLinks

MOST_PEERS = 10_000
_AT_ONCE = 16
Seat = tuple[str, int]
State = dict[str, Any]


class _Nobody:
    """An observer takes no messages."""

    def received(self, peer: str, frames: list[tuple[int, bytes]]) -> None:
        """Ignore messages."""

    def lost(self, peer: str) -> None:
        """Ignore the end of a connection."""

    def state(self) -> bytes:
        """Return no state."""
        return b"{}"


async def survey(contacts: Sequence[str], settings: LinkSettings) -> tuple[list[State], list[str]]:
    """Return the states of all peers that can be found from the contacts, and who did not answer.

    Raises EnvironmentProblem if no contact answers.
    """
    states: dict[str, State] = {}
    problems: dict[str, str] = {}
    pending = list(dict.fromkeys(contacts))
    asked = set(pending)
    while pending and len(states) < MOST_PEERS:
        some, pending = pending[:_AT_ONCE], pending[_AT_ONCE:]
        for address, found in zip(
            some, await asyncio.gather(*(_ask(one, settings) for one in some)), strict=True
        ):
            if isinstance(found, str):
                problems[address] = found
                continue
            states.setdefault(found["peer"], found)
            for other in sorted(_known_to(found)):
                if other not in asked and other.partition("/")[0] not in asked:
                    asked.add(other)
                    pending.append(other)
    if not states:
        said = "; ".join(f"{address}: {why}" for address, why in problems.items())
        raise EnvironmentProblem(
            f"no peer answers ({said})", where="--contact", todo="Name a running peer."
        )
    return list(states.values()), [f"{peer}: {why}" for peer, why in problems.items()]


async def _ask(address: str, settings: LinkSettings) -> State | str:
    links = PeerLinks(_Nobody(), settings, ())
    try:
        found: State = msgspec.json.decode(await links.ask_state(address))
    except (OSError, TimeoutError, ValueError) as problem:
        return str(problem) or "no answer in time"
    if "/" in address and found["peer"] != address:
        return f"gone; {found['peer']} is there now"
    return found


def _known_to(state: State) -> set[str]:
    known = set(state["links"])
    for space in state["spaces"].values():
        for seat in space["seats"]:
            known.update(member[0] for group in seat["groups"] for member in group)
            if seat["parent"] is not None:
                known.add(seat["parent"][0])
    return known


# --- one space ---------------------------------------------------------------------------------


def _seats(states: Sequence[State], space: str) -> dict[Seat, State]:
    return {
        (state["peer"], seat["seat"]): seat
        for state in states
        for seat in state["spaces"].get(space, {"seats": []})["seats"]
    }


def _children(address: Seat, seat: State) -> list[tuple[int, Seat]]:
    """Return the members of a seat's groups with their level, the highest level first."""
    found = []
    for level in range(len(seat["groups"]) - 1, -1, -1):
        members = [(one[0], one[1]) for one in seat["groups"][level]]
        found += [(level, one) for one in members if one != address]
    return found


def summary(states: Sequence[State], space: str) -> dict[str, Any]:
    """Return the figures of a space's tree."""
    seats = _seats(states, space)
    members = [state["spaces"][space] for state in states if space in state["spaces"]]
    total = {
        name: sum(one[name] for one in seats.values())
        for name in ("received", "unwanted", "forwarded", "delivered", "overhead")
    }
    return {
        "peers": len(members),
        "boxes": len(seats),
        "roots": sum(one["parent"] is None for one in seats.values()),
        "height": max((one["top"] for one in seats.values()), default=0),
        "repairs": sum(one["repairs"] for one in members),
        "repeated": sum(one["repeated"] for one in members),
        "unconfirmed": sum(one["unconfirmed"] for one in members),
        **total,
    }


def tree_lines(states: Sequence[State], space: str) -> Iterator[str]:
    """Yield the tree of a space as text, a line for each seat."""
    seats = _seats(states, space)
    shown: set[Seat] = set()
    roots = [address for address, seat in seats.items() if seat["parent"] is None]
    for root in sorted(roots, key=lambda one: -seats[one]["top"]):
        yield from _branch(root, seats, shown, "", "")
    for address in seats:
        if address not in shown:
            parent = seats[address]["parent"]
            yield f"{_label(address, seats)}  (its parent {parent[0]} is not shown)"


def _branch(
    address: Seat, seats: dict[Seat, State], shown: set[Seat], first: str, rest: str
) -> Iterator[str]:
    yield first + _label(address, seats)
    if address in shown or address not in seats:
        return
    shown.add(address)
    children = _children(address, seats[address])
    for place, (_, child) in enumerate(children):
        is_last = place == len(children) - 1
        yield from _branch(
            child,
            seats,
            shown,
            rest + ("└─ " if is_last else "├─ "),
            rest + ("   " if is_last else "│  "),
        )


def _label(address: Seat, seats: dict[Seat, State]) -> str:
    name = f"{address[0].partition('/')[0]}#{address[1]}"
    seat = seats.get(address)
    if seat is None:
        return f"{name}  (does not answer)"
    return (
        f"{name}  level {seat['top']}  box {_box_text(seat['box'])}  received {seat['received']}, "
        f"forwarded {seat['forwarded']}, overhead {seat['overhead']:g}"
    )


def _box_text(box: list[list[float | None]]) -> str:
    """Return a box as text; JSON has no infinity, so null is an open end."""
    sides = zip(*box, strict=True)
    return " × ".join("any" if low is None else f"{low:g}..{high:g}" for low, high in sides)


# --- a picture -----------------------------------------------------------------------------------

_WIDE, _HIGH, _ROW = 150, 34, 74


def picture(states: Sequence[State], space: str) -> str:
    """Return the tree of a space as an SVG: a column for each box, a row for each level."""
    seats = _seats(states, space)
    roots = [address for address, seat in seats.items() if seat["parent"] is None]
    spots: dict[Seat, tuple[float, int]] = {}
    edges: list[tuple[Seat, Seat]] = []
    width = 0.0
    for root in sorted(roots, key=lambda one: -seats[one]["top"]):
        width = _place(root, seats, spots, edges, width, 0)
    rows = 1 + max((row for _, row in spots.values()), default=0)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(1, width) * _WIDE:g}" '
            f'height="{rows * _ROW}" font-family="sans-serif" font-size="11">'
        )
    ]
    for parent, child in edges:
        (x1, y1), (x2, y2) = (_centre(spots[one]) for one in (parent, child))
        parts.append(f'<line x1="{x1:g}" y1="{y1}" x2="{x2:g}" y2="{y2}" stroke="#888"/>')
    most = max((one["overhead"] for one in seats.values()), default=0) or 1
    for address, spot in spots.items():
        parts += _drawn(address, seats.get(address), _centre(spot), most)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _place(
    address: Seat,
    seats: dict[Seat, State],
    spots: dict[Seat, tuple[float, int]],
    edges: list[tuple[Seat, Seat]],
    left: float,
    row: int,
) -> float:
    """Give a seat and all below it their spots; return where the next one may begin."""
    spots[address] = (left, row)
    at = left
    children = _children(address, seats[address]) if address in seats else []
    for _, child in children:
        if child not in spots:
            edges.append((address, child))
            at = _place(child, seats, spots, edges, at, row + 1)
    end = max(at, left + 1)
    spots[address] = ((left + end - 1) / 2, row)
    return end


def _centre(spot: tuple[float, int]) -> tuple[float, int]:
    return (spot[0] + 0.5) * _WIDE, spot[1] * _ROW + _ROW // 2


def _drawn(address: Seat, seat: State | None, centre: tuple[float, int], most: float) -> list[str]:
    x, y = centre
    share = 0.0 if seat is None else seat["overhead"] / most
    colour = (
        "#eee"
        if seat is None
        else f"rgb(255,{255 - round(150 * share)},{255 - round(200 * share)})"
    )
    name = escape(f"{address[0].partition('/')[0]}#{address[1]}")
    below = (
        "does not answer" if seat is None else f"level {seat['top']}, overhead {seat['overhead']:g}"
    )
    left, top = x - _WIDE / 2 + 4, y - _HIGH / 2
    return [
        (
            f'<rect x="{left:g}" y="{top:g}" width="{_WIDE - 8}" height="{_HIGH}" rx="4" '
            f'fill="{colour}" stroke="#444"/>'
        ),
        f'<text x="{x:g}" y="{y - 2}" text-anchor="middle">{name}</text>',
        f'<text x="{x:g}" y="{y + 12}" text-anchor="middle" fill="#555">{escape(below)}</text>',
    ]
