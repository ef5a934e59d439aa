"""A counter is declared once, shown in every place, and counts something."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import nearcast
from nearcast.broker import Broker, Counters
from nearcast.broker.counters import DROPS, counter
from nearcast.cluster.causal_groups import CausalCounts, GroupCounts
from nearcast.cluster.peer import ClusterCounts
from nearcast.server.feed.session import FeedCounts
from nearcast.server.metrics.declared import (
    PROCESS_METRICS,
    MetricSource,
    _declared,
    broker_metrics,
    cluster_metrics,
    peer_metrics,
)
from nearcast.server.metrics.exposition import _of_node, prometheus_text, sys_topics
from nearcast.server.overlay.bridge import BridgeCounts
from nearcast.server.overlay.links import LinkCounts
from nearcast.server.overlay.local_clients import PeerCounts

SOURCES = sorted(Path(nearcast.__file__).parent.rglob("*.py"))
METRICS = (*broker_metrics(), *cluster_metrics(), *peer_metrics(), *PROCESS_METRICS)
HOLDERS = {
    Counters: ("counters",),
    **dict.fromkeys(
        (ClusterCounts, CausalCounts, FeedCounts, LinkCounts, PeerCounts, BridgeCounts), ("counts",)
    ),
    GroupCounts: ("in_group",),
}
"""The names under which objects of a class of counters are known in the source."""


@cache
def counted(holder: str) -> frozenset[str]:
    """Return the attributes of `holder`, or of `something.holder`, to which the source adds."""
    return frozenset(name for tree in _trees(holder) for name in _counted_in(tree, holder))


def _trees(word: str) -> Iterator[ast.AST]:
    """Yield the syntax trees of the sources that have the word at all."""
    for file in SOURCES:
        if word in (text := file.read_text("utf-8")):
            yield ast.parse(text)


def _counted_in(tree: ast.AST, holder: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                # also counts.discarded[reason] = …
                place = target.value if isinstance(target, ast.Subscript) else target
                owner = getattr(place, "value", None)
                name = getattr(owner, "attr", getattr(owner, "id", ""))
                if isinstance(place, ast.Attribute) and name.lstrip("_") == holder:
                    yield place.attr


@pytest.mark.parametrize("counts", HOLDERS)
def test_every_counter_is_declared_with_a_help_text(counts: type[Any]):
    for one in fields(counts):
        if one.type == "int":
            assert one.metadata.get("help"), one.name


@pytest.mark.parametrize("counts", HOLDERS)
def test_every_declared_counter_counts_something(counts: type[Any]):
    found = {name for holder in HOLDERS[counts] for name in counted(holder)}
    assert {one.name for one in fields(counts)} - found == set()


def test_whatever_is_counted_is_declared():
    known = {holder: set[str]() for holders in HOLDERS.values() for holder in holders}
    for counts, holders in HOLDERS.items():
        for holder in holders:
            known[holder] |= {one.name for one in fields(counts)}
    assert counted("counters") - known["counters"] == set()
    assert counted("counts") - known["counts"] == set()


def test_every_counter_of_the_broker_is_shown_with_its_value():
    node = Broker()
    values = {one.name: 1_000_003 * number for number, one in enumerate(fields(Counters), 1)}
    for name, value in values.items():
        setattr(node.counters, name, value)
    page = prometheus_text(node, uptime_s=1.0).splitlines()

    for name, value in values.items():
        reason = name.removeprefix("dropped_")
        series = f'dropped_total{{reason="{reason}"}}' if reason in DROPS else f"{name}_total"
        assert f"nearcast_{series} {value}" in page
    topics = dict(sys_topics(node, uptime_s=1))
    for one in fields(Counters):
        for topic in one.metadata["topics"]:
            assert topics[topic] == str(values[one.name])
    assert topics["publish/messages/dropped"] == str(sum(values[name] for name in DROPS.values()))
    assert topics["messages/sent"] == str(values["others_sent"] + values["publish_sent"])


def test_a_broker_alone_shows_its_feed_and_only_if_it_has_one():
    for counts in (None, FeedCounts(stored=5)):
        names = {one.name for one in _of_node(MetricSource(Broker(), 1.0, feed=counts))}
        assert ("nearcast_feed_stored_total" in names) is (counts is not None)


def test_the_counters_of_the_feed_and_the_links_are_shown():
    class Network:
        frames_dropped = 7

    counts = FeedCounts(stored=11, repeated=12, dropped=13)
    source = MetricSource(Broker(), 1.0, Network, feed=counts)  # type: ignore[arg-type]
    values = {one.name: one.read(source) for one in cluster_metrics() if "_feed_" in one.name}
    assert values == {
        "nearcast_feed_stored_total": 11,
        "nearcast_feed_repeated_total": 12,
        "nearcast_feed_dropped_total": 13,
    }
    dropped = {one.name: one for one in METRICS}["nearcast_network_frames_dropped_total"]
    assert dropped.read(source) == 7


def test_no_name_and_no_topic_stands_twice_and_each_says_what_it_is():
    names = Counter(one.name for one in METRICS if one.name)
    topics = Counter(topic for one in METRICS for topic in one.topics)
    assert [name for name, count in (names + topics).items() if count > 1] == []
    assert all(one.help and (one.name or one.topics) for one in METRICS)


def test_one_declaration_is_enough_for_the_field_the_metric_and_the_topic():
    @dataclass(slots=True)
    class Counts:
        colours: int = counter("Colours that clients have sent", "colours/received")

    counts = Counts()
    counts.colours += 3
    (metric,) = _declared(Counts, "", "feed")
    source = MetricSource(Broker(), 1.0)
    source.feed = counts  # type: ignore[assignment]
    assert (metric.name, metric.kind) == ("nearcast_colours_total", "counter")
    assert (metric.help, metric.topics) == ("Colours that clients have sent", ("colours/received",))
    assert metric.read(source) == 3


def test_the_search_for_counting_finds_each_form_of_it():
    text = "counters.a += 1\nself.state._counters.b += n\nx.counters.c = 2\ncounters.d[why] = 1\n"
    text += "others.e += 1\ncounters = 2\n"
    assert set(_counted_in(ast.parse(text), "counters")) == {"a", "b", "c", "d"}
