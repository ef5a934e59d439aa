"""How an event finds its leaves, step by step (paper 0, "Delivering an event").

`Plan.leaves_for_event` looks leaves up; here the event goes from node to node of the tree, as
between brokers, and the steps are counted. Both must find the same leaves.

Links. An R leaf is linked at the smallest Q block that contains it, so routing may leave the Q part
as soon as it gets there, and each R leaf is linked at one block on the way to any of its points. R
leaves that overlap know each other, so that handing an event to one of them is enough (trap T0.2).
A linked R leaf that does not contain the event does not stop the descent (trap T0.7).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nearcast.locality.layout.plan import Plan
from nearcast.locality.layout.quadtree import block_of
from nearcast.locality.layout.rect import Area, Rect, checked_rect, is_covered
from nearcast.model.errors import OutOfRangeError


@dataclass(frozen=True, slots=True)
class LeafRoute:
    """The leaves that an event reached, and what that cost.

    `nodes` is the number of blocks visited, leaves included; `depth` the most blocks on one way
    from the root to a leaf; `comparisons` the number of rectangles compared.
    """

    leaves: tuple[int, ...]
    nodes: int
    depth: int
    comparisons: int

    @property
    def messages(self) -> int:
        """Return the number of messages between blocks: one for each block except the first."""
        return self.nodes - 1


@dataclass(slots=True)
class _Walk:
    rect: Rect
    found: dict[int, None] = field(default_factory=dict)
    nodes: int = 0
    depth: int = 0
    comparisons: int = 0

    def visit(self, depth: int) -> None:
        self.nodes += 1
        self.depth = max(self.depth, depth)

    def route(self) -> LeafRoute:
        return LeafRoute(tuple(sorted(self.found)), self.nodes, self.depth, self.comparisons)


class LeafRouter:
    """Routes events through a plan, starting in the Q part or in the R part.

    Complexity of `from_q` for a point: at most height of Q + 1 blocks in the Q part, plus the R
    leaves that contain the point; the comparisons add the R leaves linked on the way.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._linked = _anchors(plan)
        self._peers = _peers(plan)

    def from_q(self, area: Area) -> LeafRoute:
        """Route from the root of the Q part; leave it where a linked R leaf contains the event."""
        walk = _Walk(self._checked(area))
        self._descend(walk, 0, "", 1)
        return walk.route()

    def from_r(self, area: Area) -> LeafRoute:
        """Route from the root of the R part, and through Q if part of the area is outside."""
        walk = _Walk(self._checked(area))
        search = self.plan.rtree.search(walk.rect)
        walk.nodes, walk.comparisons = search.nodes_visited, search.nodes_visited
        walk.depth = 1 + (self.plan.rtree.height if search.leaves else 0)
        walk.found.update(dict.fromkeys(search.leaves))
        if not is_covered(walk.rect, self._rects(search.leaves)):
            self._descend_plainly(walk, 0, walk.depth + 1)
        return walk.route()

    def _checked(self, area: Area) -> Rect:
        rect = checked_rect(area, "place of an event")
        if not rect.intersects(self.plan.space):
            raise OutOfRangeError(
                f"{tuple(rect)}", where="place of an event", expected=f"in {tuple(self.plan.space)}"
            )
        return rect.clamped(self.plan.space)

    def _descend(self, walk: _Walk, node: int, path: str, depth: int) -> None:
        walk.visit(depth)
        block = self.plan.grid.closed_block(*block_of(path))
        self._hand_to_linked(walk, self._linked.get(path, ()), depth + 1)
        here = walk.rect.clamped(block)
        if walk.found and is_covered(here, self._rects(walk.found)):
            return
        first = int(self.plan.quadtree.first_child[node])
        if first < 0:
            walk.found[int(self.plan.quadtree.leaf_of_node[node])] = None
            return
        for digit in range(4):
            child = path + str(digit)
            walk.comparisons += 1
            if self.plan.grid.closed_block(*block_of(child)).intersects(walk.rect):
                self._descend(walk, first + digit, child, depth + 1)

    def _hand_to_linked(self, walk: _Walk, linked: tuple[int, ...], depth: int) -> None:
        waiting = list(linked)
        while waiting:
            number = waiting.pop()
            walk.comparisons += 1
            if number in walk.found or not self.plan.leaves[number].rect.intersects(walk.rect):
                continue
            walk.found[number] = None
            walk.visit(depth)
            waiting.extend(self._peers[number])

    def _descend_plainly(self, walk: _Walk, node: int, depth: int) -> None:
        """Visit the Q leaves outside the R leaves found so far, without using links."""
        tree, grid = self.plan.quadtree, self.plan.grid
        walk.visit(depth)
        block = grid.closed_block(*block_of(tree.paths[node]))
        if is_covered(walk.rect.clamped(block), self._rects(walk.found)):
            return
        first = int(tree.first_child[node])
        if first < 0:
            walk.found[int(tree.leaf_of_node[node])] = None
            return
        for child in range(first, first + 4):
            walk.comparisons += 1
            if grid.closed_block(*block_of(tree.paths[child])).intersects(walk.rect):
                self._descend_plainly(walk, child, depth + 1)

    def _rects(self, numbers: object) -> list[Rect]:
        leaves, r_count = self.plan.leaves, self.plan.r_count
        return [leaves[n].rect for n in numbers if n < r_count]  # type: ignore[attr-defined]


def _anchors(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return the R leaves linked at each block: it is the smallest block that contains them."""
    blocks = set(plan.quadtree.paths)
    anchored: dict[str, tuple[int, ...]] = {}
    for leaf in plan.leaves[: plan.r_count]:
        low = plan.grid.cell(leaf.rect.west, leaf.rect.south)
        high = plan.grid.cell(leaf.rect.east, leaf.rect.north)
        path = ""
        for level in range(plan.grid.depth - 1, -1, -1):
            step = (low[0] >> level & 1) + 2 * (low[1] >> level & 1)
            if low[0] >> level != high[0] >> level or low[1] >> level != high[1] >> level:
                break
            if path + str(step) not in blocks:
                break
            path += str(step)
        anchored[path] = (*anchored.get(path, ()), leaf.number)
    return anchored


def _peers(plan: Plan) -> list[tuple[int, ...]]:
    """Return the R leaves that overlap each R leaf."""
    return [
        tuple(n for n in plan.rtree.search(leaf.rect).leaves if n != leaf.number)
        for leaf in plan.leaves[: plan.r_count]
    ]
