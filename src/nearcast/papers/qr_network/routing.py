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


@dataclass(slots=True)
class LeafRoute:
    """The leaves that an event about `rect` has reached (`found`), and what that cost.

    `nodes` is the number of blocks visited, leaves included; `depth` the most blocks on one way
    from the root to a leaf; `comparisons` the number of rectangles compared.
    """

    rect: Rect
    found: set[int] = field(default_factory=set)
    nodes: int = 0
    depth: int = 0
    comparisons: int = 0

    def visit(self, depth: int) -> None:
        """Count a block that is so many blocks from the root."""
        self.nodes += 1
        self.depth = max(self.depth, depth)

    @property
    def leaves(self) -> tuple[int, ...]:
        """Return the numbers of the leaves, sorted."""
        return tuple(sorted(self.found))

    @property
    def messages(self) -> int:
        """Return the number of messages between blocks: one for each block except the first."""
        return self.nodes - 1


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
        route = LeafRoute(self._checked(area))
        self._descend(route, 0, 1, with_links=True)
        return route

    def from_r(self, area: Area) -> LeafRoute:
        """Route from the root of the R part, and through Q if part of the area is outside."""
        route = LeafRoute(self._checked(area))
        search = self.plan.rtree.search(route.rect)
        route.nodes, route.comparisons = search.nodes_visited, search.nodes_visited
        route.depth = 1 + (self.plan.rtree.height if search.leaves else 0)
        route.found.update(search.leaves)
        if not is_covered(route.rect, self._rects(route.found)):
            self._descend(route, 0, route.depth + 1, with_links=False)
        return route

    def _checked(self, area: Area) -> Rect:
        rect = checked_rect(area, "place of an event")
        if not rect.intersects(self.plan.space):
            raise OutOfRangeError(
                f"{tuple(rect)}", where="place of an event", expected=f"in {tuple(self.plan.space)}"
            )
        return rect.clamped(self.plan.space)

    def _descend(self, route: LeafRoute, node: int, depth: int, *, with_links: bool) -> None:
        """Visit a Q block and those below it that meet the event, as far as no R leaf covers it."""
        tree, grid = self.plan.quadtree, self.plan.grid
        route.visit(depth)
        path = tree.paths[node]
        if with_links:
            self._hand_to_linked(route, self._linked.get(path, ()), depth + 1)
        here = route.rect.clamped(grid.closed_block(*block_of(path)))
        if is_covered(here, self._rects(route.found)):
            return
        first = int(tree.first_child[node])
        if first < 0:
            route.found.add(int(tree.leaf_of_node[node]))
            return
        for child in range(first, first + 4):
            route.comparisons += 1
            if grid.closed_block(*block_of(tree.paths[child])).intersects(route.rect):
                self._descend(route, child, depth + 1, with_links=with_links)

    def _hand_to_linked(self, route: LeafRoute, linked: tuple[int, ...], depth: int) -> None:
        waiting = list(linked)
        while waiting:
            number = waiting.pop()
            route.comparisons += 1
            if number in route.found or not self.plan.leaves[number].rect.intersects(route.rect):
                continue
            route.found.add(number)
            route.visit(depth)
            waiting.extend(self._peers[number])

    def _rects(self, numbers: set[int]) -> list[Rect]:
        """Return the rectangles of the R leaves among some leaves."""
        return [self.plan.leaves[n].rect for n in sorted(numbers) if n < self.plan.r_count]


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
