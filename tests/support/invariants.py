"""Invariants that hold between any two calls; each check raises AssertionError, and is slow."""

from __future__ import annotations

import math
from typing import Any

from nearcast.index.boxes.boxes import Boxes, BoxTable
from nearcast.matching import Matcher
from nearcast.matching.attribute_lists import only_attribute
from nearcast.matching.filter_index import FilterIndex


def check_topic_tree(tree: Any) -> None:
    count, stack = 0, [tree._root]
    while stack:
        level = stack.pop()
        count += len(level.here) + len(level.below)
        assert "#" not in level.children
        assert all(not child.is_empty() for child in level.children.values())
        stack.extend(level.children.values())
    assert count == tree._size
    assert len(tree._cache) <= tree._cache_size


def check_boxes(boxes: Any) -> None:
    if isinstance(boxes, Boxes):
        boxes = boxes._used
    if isinstance(boxes, BoxTable):
        assert len(boxes._rows) == boxes._count
        assert all(boxes._keys[row] == key for key, row in boxes._rows.items())
        return
    from tests.support.box_invariants import check_pools  # imports a compiler

    check_pools(boxes._pools)


def check_filter_index(index: FilterIndex) -> None:
    ids = list(index._bounds) if index._index is None else index._rows.used()
    assert len(ids) == len(index)
    if index._index is not None:
        check_boxes(index._index)
        lists = index._lists._lists
        assert all(lists.values()), "an empty list"
        for box_id in ids:
            at = [at for at, intervals in lists.items() if box_id in intervals]
            assert at == [] if box_id in index._index else len(at) == 1
            only = only_attribute(*index._bounds_of(box_id))
            is_plain = box_id not in index._shapes
            if only is not None and is_plain and math.isnan(index._rows.table[box_id]["lon"]):
                assert at == [only]
            else:
                assert at == []


def check_matcher(matcher: Matcher) -> None:
    for name, tree in matcher._trees.items():
        check_topic_tree(tree)
        placed = [
            (index, ids)
            for entry in matcher._entries.values()
            for index, ids in entry.boxes
            if index.space.name == name
        ]
        indexes = {id(index): index for index, _ in placed}
        assert len(tree) == len(indexes)
        assert sum(map(len, indexes.values())) == sum(len(ids) for _, ids in placed)
        for index in indexes.values():
            check_filter_index(index)


def check_retained_delivery(core: Any) -> None:
    listed: dict[Any, set[str]] = {}
    for topic, hold in core._holds.items():
        assert hold.cohorts, f"{topic} is held for nobody"
        assert any(a[0] == hold.due and a[2] == topic for a in core._alarms), "no alarm"
        sinces = [cohort.since for cohort in hold.cohorts]
        assert sinces == sorted(sinces)
        for cohort in hold.cohorts:
            assert cohort.waiters
            for subscriber in cohort.waiters:
                assert topic not in listed.setdefault(subscriber, set()), "waits twice"
                listed[subscriber].add(topic)
    assert listed == core._topics_of
