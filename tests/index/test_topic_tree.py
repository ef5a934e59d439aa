"""The topic tree answers as a linear scan by the definition would, whatever the history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.invariants import check_topic_tree

from nearcast.index.topic_tree import TopicTree
from nearcast.model.errors import KeyInUseError, KeyMissingError

levels = st.sampled_from(["", "a", "b", "$a"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
plain_filters = (
    st.lists(st.sampled_from(["", "a", "b", "$a", "+"]), min_size=1, max_size=4)
    .map("/".join)
    .filter(bool)
)
filters = plain_filters | plain_filters.map(lambda text: text + "/#") | st.just("#")
keys = st.integers(0, 2)


def fits(topic_filter: str, topic: str) -> bool:
    """Oracle: section 4.7, word for word."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic[0] == "$" and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return len(given) >= place
        if place >= len(given) or level not in ("+", given[place]):
            return False
    return len(wanted) == len(given)


class TreeAgreesWithScan(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = TopicTree[int, tuple[str, int]](cache_size=3)
        self.scan: set[tuple[str, int]] = set()

    @rule(topic_filter=filters, key=keys)
    def put(self, topic_filter: str, key: int) -> None:
        self.tree.put(topic_filter, key, (topic_filter, key))
        self.scan.add((topic_filter, key))

    @rule(topic_filter=filters, key=keys)
    def add(self, topic_filter: str, key: int) -> None:
        if (topic_filter, key) in self.scan:
            with pytest.raises(KeyInUseError):
                self.tree.add(topic_filter, key, (topic_filter, key))
        else:
            self.tree.add(topic_filter, key, (topic_filter, key))
            self.scan.add((topic_filter, key))

    @rule(topic_filter=filters, key=keys)
    def discard(self, topic_filter: str, key: int) -> None:
        if (topic_filter, key) in self.scan:
            assert self.tree.discard(topic_filter, key) == (topic_filter, key)
            self.scan.remove((topic_filter, key))
        else:
            with pytest.raises(KeyMissingError):
                self.tree.discard(topic_filter, key)

    @rule(topic=topics)
    def match(self, topic: str) -> None:
        found = self.tree.match(topic)

        assert len(found) == len(set(found))
        assert set(found) == {entry for entry in self.scan if fits(entry[0], topic)}

    @rule(topic_filter=filters, key=keys)
    def get(self, topic_filter: str, key: int) -> None:
        known = (topic_filter, key) in self.scan
        assert self.tree.get(topic_filter, key) == ((topic_filter, key) if known else None)

    @invariant()
    def holds_together(self) -> None:
        check_topic_tree(self.tree)
        assert len(self.tree) == len(self.scan)


TestTreeAgreesWithScan = TreeAgreesWithScan.TestCase


@given(st.lists(filters, unique=True, max_size=12), st.lists(topics, min_size=1, max_size=6))
def test_a_tree_filled_at_once_agrees_with_the_scan(
    wanted: list[str], published: list[str]
) -> None:
    tree = TopicTree[str, str]()
    for topic_filter in wanted:
        tree.add(topic_filter, topic_filter, topic_filter)

    for topic in published + published:
        assert set(tree.match(topic)) == {one for one in wanted if fits(one, topic)}


def test_an_answer_comes_from_the_cache_until_a_filter_that_fits_changes() -> None:
    tree = TopicTree[str, str]()
    tree.add("a/b", "k", "v")
    first = tree.match("a/b")

    assert tree.match("a/b") is first
    tree.add("a/c", "k", "other")
    assert tree.match("a/b") is first
    tree.add("a/b", "other", "w")
    assert set(tree.match("a/b")) == {"v", "w"}
    tree.add("a/+", "k", "wild")
    assert set(tree.match("a/b")) == {"v", "w", "wild"}
    tree.discard("a/b", "other")
    assert set(tree.match("a/b")) == {"v", "wild"}


def test_sixty_thousand_levels_are_no_danger() -> None:
    tree = TopicTree[str, str]()
    deep = "/" * 60_000
    tree.add(deep, "k", "v")

    assert tree.match(deep) == ("v",)
    assert tree.discard(deep, "k") == "v"
    check_topic_tree(tree)
