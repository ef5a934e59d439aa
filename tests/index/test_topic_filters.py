"""Filters against topics and against each other, by trying all short topics."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from nearcast.index import TopicTree
from nearcast.index.topic_filters import filter_covers, filters_overlap, topic_matches

LEVELS = ["a", "b", "$x"]
TOPICS = ["/".join(t) for n in (1, 2, 3, 4) for t in product([*LEVELS, ""], repeat=n)]

levels = st.sampled_from([*LEVELS, "+", ""])
filters = st.tuples(st.lists(levels, min_size=1, max_size=3), st.booleans()).map(
    lambda f: "/".join([*f[0], "#"] if f[1] else f[0]) or "+"
)


@given(filters)
def test_the_definition_agrees_with_the_topic_tree(topic_filter):
    tree = TopicTree[int, bool]()
    tree.add(topic_filter, 1, True)
    for topic in TOPICS:
        assert bool(tree.match(topic)) == topic_matches(topic_filter, topic)


@given(filters, filters)
def test_filters_overlap_when_some_topic_fits_both(one, other):
    together = any(topic_matches(one, t) and topic_matches(other, t) for t in TOPICS)
    assert filters_overlap(one, other) == together
    assert filters_overlap(other, one) == together


@given(filters, filters)
def test_a_filter_that_covers_another_fits_all_its_topics(one, other):
    if filter_covers(one, other):
        assert all(topic_matches(one, t) for t in TOPICS if topic_matches(other, t))
