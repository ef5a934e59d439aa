"""Events and subscriptions: who gets what."""

from __future__ import annotations

from pyspark.sql import DataFrame

from nearcast.matching.ranking import checked_rank
from nearcast.model import Space
from nearcast.pipeline.jobs.match import MatchQuery
from nearcast.pipeline.jobs.match_frames import PreparedMatch, prepare_match


def match(
    events: DataFrame, subscriptions: DataFrame, space: Space, *, topic: str | None = None
) -> DataFrame:
    """Return all matching pairs: `event_id`, `subscription_id`.

    `events` has `event_id` (a whole number) and a column per attribute of the space.
    `subscriptions` has `subscription_id` and either `where` and `area` as text, or NAME_low and
    NAME_high per attribute. Events that cannot be matched (`unmatched`) are left out.

    Subscriptions of up to 64 MB are collected and sent to the workers; more are matched by place.
    Events are never collected. The result is lazy, and the same under any partitioning.
    """
    return (
        _prepared(events, subscriptions, space, topic, None, "narrowest").deliveries().drop("rank")
    )


def top_k(
    events: DataFrame,
    subscriptions: DataFrame,
    space: Space,
    k: int,
    *,
    rank: str = "narrowest",
    topic: str | None = None,
) -> DataFrame:
    """Return the k best subscriptions of each event: `event_id`, `subscription_id`, `rank` from 1.

    `rank` is narrowest, nearest, centre, weight, or a blend such as narrowest:0.7,weight:0.3. The
    ranking is exact: all subscriptions compete. Otherwise as `match`.
    """
    return _prepared(events, subscriptions, space, topic, k, rank).deliveries()


def match_counts(
    events: DataFrame, subscriptions: DataFrame, space: Space, *, topic: str | None = None
) -> DataFrame:
    """Return for how many events each subscription matches: `subscription_id`, `events`.

    Subscriptions that match nothing are left out. The same as counting the rows of `match`, but
    workers count, and no pair leaves them. Otherwise as `match`.
    """
    return _prepared(events, subscriptions, space, topic, None, "narrowest").counts()


def unmatched(
    events: DataFrame, subscriptions: DataFrame, space: Space, *, topic: str | None = None
) -> DataFrame:
    """Return the events that cannot be matched: `event_id` and the `reason`; lazy."""
    return _prepared(events, subscriptions, space, topic, None, "narrowest").bad


def _prepared(
    events: DataFrame,
    subscriptions: DataFrame,
    space: Space,
    topic: str | None,
    k: int | None,
    rank: str,
) -> PreparedMatch:
    matching = topic or space.topic_filter.replace("+", "x").replace("#", "x")
    query = MatchQuery(space.name, matching, k, checked_rank(rank))
    return prepare_match(events, subscriptions, space, query)
