"""Indexes for matching: intervals, boxes, topics.

- `IntervalSkipList`: intervals on one attribute, ranked (paper 1). Read
  `intervals/interval_skip_list.py`.
- `BoxIndex`: boxes on several attributes that move. Read `boxes/box_index.py`.
- `TopicTree`: topic filters. Read `topic_tree.py`.

They contain numbers and keys, nothing else: no exact shapes, no metres, no subscribers (those are
in `nearcast.matching`), no threads. Names are loaded on first use, so that a program that needs
only the topic tree does not import Numba. `warm_up()` compiles all kernels, or loads them from
disk: call it at installation, and in a server before it serves.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.index.boxes.box_index import BoxIndex
    from nearcast.index.intervals.interval_skip_list import IntervalSkipList
    from nearcast.index.topic_tree import TopicTree

__all__ = ["BoxIndex", "IntervalSkipList", "TopicTree", "warm_up"]

_HOMES = {
    "BoxIndex": "nearcast.index.boxes.box_index",
    "IntervalSkipList": "nearcast.index.intervals.interval_skip_list",
    "TopicTree": "nearcast.index.topic_tree",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def warm_up() -> None:
    """Compile every kernel of both indexes, or load it from disk.

    For many at once, in parallel, see `nearcast.warming`.
    """
    from nearcast.kernels import load

    load(["matching"])
