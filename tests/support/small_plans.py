"""Random rectangles and plans of a small space, on half numbers, so that edges often meet."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nearcast.locality import CellCounts, Plan, Rect

SPACE = Rect(0.0, 0.0, 8.0, 8.0)
MARKS = st.integers(0, 16).map(lambda half: half / 2)


@st.composite
def rects(draw: st.DrawFn, marks: st.SearchStrategy[float] = MARKS) -> Rect:
    x, y = sorted(draw(st.tuples(marks, marks))), sorted(draw(st.tuples(marks, marks)))
    return Rect(x[0], y[0], x[1], y[1])


@st.composite
def plans(draw: st.DrawFn, /, most_regions: int = 6, **options: st.SearchStrategy[Any]) -> Plan:
    """Return a plan of up to so many regions; each option of `Plan.build` is drawn."""
    regions = draw(st.lists(rects(), max_size=most_regions))
    points = draw(st.lists(st.tuples(MARKS, MARKS), max_size=20))
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    counts = CellCounts.from_positions(SPACE, regions, xs, ys, depth=3)
    drawn = {name: draw(one) for name, one in options.items()}
    return Plan.build(SPACE, regions, counts, **drawn)
