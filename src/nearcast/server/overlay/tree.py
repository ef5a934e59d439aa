"""The tree of an overlay as peers report it: found peer by peer, shown as text or as a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

    def ended(self, peer: str) -> None:
        """Ignore the end of a peer."""

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


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of a tree that is drawn from top to bottom, each group below its host."""

    address: Seat
    seat: State | None
    """None: the peer does not answer."""
    depth: int
    lead: str
    """The branches of the tree before the name, as text."""
    above: int
    """The row of the parent; -1 for a root."""

    @property
    def name(self) -> str:
        """The address of the peer, and its seat."""
        return f"{self.address[0].partition('/')[0]}#{self.address[1]}"


def tree_rows(states: Sequence[State], space: str) -> list[TreeRow]:
    """Return the rows of a space's tree, the highest root first; lost branches come last."""
    seats = _seats(states, space)
    rows: list[TreeRow] = []
    shown: set[Seat] = set()
    roots = [address for address, seat in seats.items() if seat["parent"] is None]
    for root in sorted(roots, key=lambda one: -seats[one]["top"]):
        _add_branch(rows, root, seats, shown, ("", ""), (0, -1))
    for address in seats:
        if address not in shown:
            _add_branch(rows, address, seats, shown, ("", ""), (0, -1))
    return rows


def _add_branch(
    rows: list[TreeRow],
    address: Seat,
    seats: dict[Seat, State],
    shown: set[Seat],
    leads: tuple[str, str],
    place: tuple[int, int],
) -> None:
    depth, above = place
    here = len(rows)
    rows.append(TreeRow(address, seats.get(address), depth, leads[0], above))
    if address in shown or address not in seats:
        return
    shown.add(address)
    children = _children(address, seats[address])
    for number, (_, child) in enumerate(children):
        last = number == len(children) - 1
        more = (leads[1] + ("└─ " if last else "├─ "), leads[1] + ("   " if last else "│  "))
        _add_branch(rows, child, seats, shown, more, (depth + 1, here))


def tree_lines(states: Sequence[State], space: str) -> Iterator[str]:
    """Yield the tree of a space as text: a head, then a line for each seat."""
    rows = tree_rows(states, space)
    wide = max((len(row.lead) + len(row.name) for row in rows), default=0)
    total = sum(row.seat["overhead"] for row in rows if row.seat is not None) or 1
    head = ("hosts", "received", "forwarded", "overhead")
    yield " " * wide + "  " + "  ".join(f"{name:>9}" for name in head) + "  box"
    for row in rows:
        name = f"{row.lead}{row.name}".ljust(wide)
        seat = row.seat
        if seat is None:
            yield f"{name}  does not answer"
            continue
        hosts = f"{seat['top']} levels" if seat["top"] > 1 else "1 level" if seat["top"] > 0 else ""
        yield (
            f"{name}  {hosts:>9}  {seat['received']:9}  {seat['forwarded']:9}  "
            f"{seat['overhead'] / total:9.0%}  {_box_text(seat['box'])}{_remark(row)}"
        )


def _remark(row: TreeRow) -> str:
    """Return what is unusual about the place of a seat."""
    seat = row.seat
    if seat is None or row.above >= 0 or seat["parent"] is None:
        return (
            "" if seat is None or seat["is_settled"] or row.above >= 0 else "  (looks for others)"
        )
    return f"  (its parent {seat['parent'][0]} is not found)"


def _box_text(box: list[list[float | None]]) -> str:
    """Return a box as text; JSON has no infinity, so null is an open end."""
    sides = zip(*box, strict=True)
    return " × ".join("any" if low is None else f"{low:.4g}..{high:.4g}" for low, high in sides)


# --- a picture -----------------------------------------------------------------------------------

_ROW, _INDENT, _NAME, _BAR, _BOX = 22, 20, 170, 200, 330


def picture(states: Sequence[State], space: str) -> str:
    """Return the tree of a space as an SVG: a row for each box, with a bar for its overhead."""
    rows = tree_rows(states, space)
    deepest = max((row.depth for row in rows), default=0)
    bar_x = 16 + deepest * _INDENT + _NAME
    box_x = bar_x + _BAR + 60
    wide, high = box_x + _BOX, (len(rows) + 2) * _ROW
    most = max((row.seat["overhead"] for row in rows if row.seat is not None), default=0) or 1
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
            f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
        f'<text x="10" y="20" font-weight="bold">{escape(space)}</text>',
        f'<text x="{bar_x}" y="20" fill="#555">overhead</text>',
        f'<text x="{box_x}" y="20" fill="#555">box</text>',
    ]
    for number, row in enumerate(rows):
        parts += _drawn(row, number, rows, (bar_x, box_x), most)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _spot(row: TreeRow, number: int) -> tuple[int, int]:
    return 16 + row.depth * _INDENT, (number + 2) * _ROW - 8


def _drawn(
    row: TreeRow, number: int, rows: list[TreeRow], columns: tuple[int, int], most: float
) -> list[str]:
    (x, y), (bar_x, box_x), seat = _spot(row, number), columns, row.seat
    parts = []
    if row.above >= 0:
        up_x, up_y = _spot(rows[row.above], row.above)
        parts.append(f'<path d="M{up_x} {up_y + 5}V{y}H{x - 5}" fill="none" stroke="#999"/>')
    colour = "#ddd" if seat is None else "#c0504d" if seat["top"] > 0 else "#4f81bd"
    parts += [
        f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>',
        f'<text x="{x + 10}" y="{y + 4}">{escape(row.name)}</text>',
    ]
    if seat is None:
        return [*parts, f'<text x="{bar_x}" y="{y + 4}" fill="#c00">does not answer</text>']
    length = round(_BAR * seat["overhead"] / most)
    return [
        *parts,
        f'<rect x="{bar_x}" y="{y - 6}" width="{length}" height="12" fill="#e3a857"/>',
        f'<text x="{bar_x + length + 5}" y="{y + 4}" fill="#555">{seat["overhead"]:g}</text>',
        f'<text x="{box_x}" y="{y + 4}" fill="#555">{escape(_box_text(seat["box"]))}</text>',
    ]
