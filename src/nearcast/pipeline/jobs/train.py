"""`train`: learns policies for retained messages from event logs (paper 4).

    log ──► rates per topic ──► groups of equal rates ──► one exact solution each ──► tables
                                        └──► is the general policy good enough? else refit

`topic_rates.py` computes the rates. They are rounded to a grid (4.4 % apart for publishing), so
that ten thousand topics become a few hundred problems; each is solved once, in the task of its
group. The table of a topic that is not in the log stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog.log_files import check_logs
from nearcast.eventlog.schemas import TOPIC_POLICIES
from nearcast.eventlog.stores import is_url
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.jobs.topic_rates import rates_per_topic
from nearcast.pipeline.session import tasks_at_once
from nearcast.pipeline.sources.event_logs import topic_pattern
from nearcast.pipeline.tables.output_files import local_file, output_folder
from nearcast.pipeline.tables.transaction import transaction
from nearcast.retained import (
    Evidence,
    Fit,
    GeneralPolicy,
    Mode,
    Policies,
    RateRange,
    Rates,
    TopicPolicy,
    TopicSetting,
    Weights,
    best_actions,
    fit,
    policies_from_text,
    policies_to_text,
    read_policies,
    share_of_gain,
    shipped_policy,
    write_policies,
)

POLICY_FILE, TABLE = "policies.json", "topic_policies"
PUBLISH_STEPS = 16  # per factor of two
LEAVE_STEPS = 40  # per unit of the square root
_MOST_PUBLISH = 8.0  # per step; above, every step all but certainly has a message
_MOST_LEAVE = 4.0
_GROUPS_JUDGED = 100
_GOOD_ENOUGH = 0.99

Refit = Literal["auto", "always", "never"]
Settings = Sequence[tuple[str, TopicSetting]]
"""Topic filters with their settings; the first filter that matches a topic decides."""


@dataclass(frozen=True, slots=True)
class TrainingRules:
    """How to train."""

    evidence: Evidence = field(default_factory=Evidence)
    most_topics: int = 10_000  # that get a table: those with most new subscriptions
    refit: Refit = "auto"  # of the general policy; auto: if the current one gains too little
    fit: Fit = field(default_factory=Fit)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class RateGroup:
    """Topics with equal rates on the grid under one setting."""

    rates: Rates
    weights: Weights
    topics: int


@dataclass(frozen=True, slots=True)
class Trained:
    """New policies, and how they compare with the last ones."""

    policies: Policies
    is_new: bool
    topics: int  # with retained publishes, in mode "learned"
    tables: int  # made now
    groups: int  # of equal rates, each solved once
    changed: int  # topics whose decisions differ from the last run
    kept: int  # tables of topics that are not in the log
    general: str  # the outcome for the general policy, in words
    general_share: float | None  # of the attainable gain, at the log's rates

    def summary(self) -> dict[str, Any]:
        """Return the result as fields for a report or JSON."""
        return {
            "changed": self.is_new,
            "topics": self.topics,
            "tables": self.tables,
            "rate_groups": self.groups,
            "tables_changed": self.changed,
            "tables_kept": self.kept,
            "general": self.general,
            "general_share": None if self.general_share is None else round(self.general_share, 4),
        }

    def lines(self) -> list[str]:
        """Return the result for people."""
        first = (
            f"{self.tables:,} tables for {self.topics:,} topics, {self.groups:,} problems solved; "
            f"{self.changed:,} tables decide differently than before, "
            f"{self.kept:,} of silent topics are kept"
        )
        lines = [first]
        if not self.topics:
            lines.append("no topic publishes retained messages often enough to wait for")
        share = self.general_share
        gain = "" if share is None else f"; it earns {share:.1%} of what can be gained"
        return [*lines, f"policy for all topics: {self.general}{gain}"]


@dataclass(frozen=True, slots=True)
class TrainJob:
    """Learns policies for retained messages from event logs."""

    name: ClassVar[str] = "train"
    logs: Sequence[str]
    output: str
    settings: Settings
    rules: TrainingRules = field(default_factory=TrainingRules)
    policy_file: Path | None = None  # None: in the output

    @property
    def path(self) -> Path:
        """The policy file, which also has the last policies."""
        return self.policy_file or Path(self.output) / POLICY_FILE

    @property
    def place(self) -> str:
        """The path or URL of that file."""
        own = self.policy_file is None and is_url(self.output)
        return f"{self.output}/{POLICY_FILE}" if own else str(self.path)

    def _save(self, done: Trained) -> None:
        if self.policy_file is not None:
            save_trained(done, self.policy_file)
            return
        with output_folder(self.output) as folder:
            save_trained(done, folder / POLICY_FILE)

    def check(self) -> None:
        """Check that the last policies can be read, and that the logs are whole."""
        if self.policy_file is not None or not is_url(self.output):
            last_policies(self.path)
        check_logs(self.logs)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the table `topic_policies`; `save` writes the policy file."""
        with local_file(self.place) as file:
            last = last_policies(file)
        done = train(spark, self.logs, self.output, self.settings, self.rules, last)
        return JobResult(
            done.summary(),
            [*done.lines(), f"Policies: {self.place}" + ("" if done.is_new else " (unchanged)")],
            {"policies": self.place},
            save=partial(self._save, done),
        )


def last_policies(path: Path) -> Policies | None:
    """Return the policies in force, None if there are none.

    Raise FileFormatError for a bad file.
    """
    if not path.exists():
        return None
    try:
        return read_policies(path)
    except FileFormatError as error:
        error.todo = "It stays as it is. To start again without it, move it away"
        raise


def train(
    spark: SparkSession,
    logs: Sequence[str],
    output: str,
    settings: Settings,
    rules: TrainingRules | None = None,
    last: Policies | None = None,
) -> Trained:
    """Return policies learned from the logs; write the table `topic_policies` under `output`.

    Collected are groups of rates, whose number the grid bounds, and the tables of at most
    `most_topics` topics.
    """
    rules = rules or TrainingRules()
    if not any(setting.mode is Mode.LEARNED for _, setting in settings):
        raise MisuseError(
            "no topics to learn for",
            where="retained",
            expected='a [[retained]] block with mode = "learned"',
        )
    base = last or Policies(general=shipped_policy())
    with rates_per_topic(spark, logs) as rates, transaction() as written:
        topics = learnable(rates, settings, base, rules.evidence).persist()
        try:
            draft = written.write(
                tables_for(topics, settings, base), f"{output}/{TABLE}", TOPIC_POLICIES
            )
        finally:
            topics.unpersist()
        made = draft.read(spark)
        groups = rate_groups(made)
        tables = _collected(made, rules.most_topics, base)
        general, told, share = _general(spark, groups, base, rules)
    return _compared(base, last, settings, tables, general, groups, draft.rows, told, share)


def learnable(
    rates: DataFrame, settings: Settings, base: Policies, evidence: Evidence
) -> DataFrame:
    """Return the topics for which a table is worthwhile, with their rates on the grid.

    Left out are topics for which the broker would not consult a policy: too few publishes, or too
    slow to wait for the next one. Adds `setting` (its index), `p` and `l` (grid coordinates), and
    rates per step.
    """
    chosen = F.lit(None).cast("int")
    hold_s = F.lit(None).cast("double")
    for place, (topic_filter, setting) in reversed(list(enumerate(settings))):
        fits = F.col("topic").rlike(topic_pattern(topic_filter))
        is_learned = setting.mode is Mode.LEARNED
        chosen = F.when(fits, F.lit(place if is_learned else None)).otherwise(chosen)
        hold_s = F.when(fits, F.lit(setting.hold_max_s)).otherwise(hold_s)
    step_s = F.col("hold_s") / F.lit(float(base.caps.hold_max))
    known = rates.withColumns({"setting": chosen, "hold_s": hold_s}).where(
        F.col("setting").isNotNull()
        & (F.col("publishes") >= F.lit(evidence.publishes_min))
        & (F.col("publish_per_s") * F.col("hold_s") >= F.lit(evidence.publishes_per_hold_min))
    )
    publish = F.least(F.col("publish_per_s") * step_s, F.lit(_MOST_PUBLISH))
    leave = F.least(F.col("leave_per_s") * step_s, F.lit(_MOST_LEAVE))
    return known.withColumns(
        {
            "p": F.round(F.log2(publish) * PUBLISH_STEPS).cast("int"),
            "l": F.round(F.sqrt(leave) * LEAVE_STEPS).cast("int"),
            "subscribe": F.col("subscribe_per_s") * step_s,
        }
    )


def on_grid(p: int, l: int) -> Rates:  # noqa: E741 - as in the columns
    """Return the rates at a point of the grid."""
    return Rates(2.0 ** (p / PUBLISH_STEPS), 0.2, (l / LEAVE_STEPS) ** 2)


def tables_for(topics: DataFrame, settings: Settings, base: Policies) -> DataFrame:
    """Return each topic with its table; the schema is TOPIC_POLICIES.

    Each group of equal rates is solved once, in one task. Two shuffles of topics.
    """
    key = ["setting", "p", "l"]
    # With an explicit number Spark uses as many tasks; else it would put few rows into one task.
    tasks = 2 * tasks_at_once(topics.sparkSession)
    groups = topics.groupBy(*key).agg(F.count(F.lit(1)).alias("alike")).repartition(tasks, *key)
    solved = groups.mapInArrow(
        _solver(settings, base),
        "setting int, p int, l int, alike bigint, publish double, leave double, omega double, "
        "message_cost double, actions string",
    )
    return topics.select("topic", "publishes", *_per_second(), "hold_s", "subscribe", *key).join(
        solved, key
    )


def _per_second() -> list[str]:
    return ["publish_per_s", "subscribe_per_s", "leave_per_s"]


def _solver(settings: Settings, base: Policies):  # type: ignore[no-untyped-def]
    weights = [setting.weights for _, setting in settings]
    model = policies_to_text(replace(base, general=None, topics={}))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        policies = policies_from_text(model)
        for batch in batches:
            rows = [_solved(row, weights[row["setting"]], policies) for row in batch.to_pylist()]
            if rows:
                kinds = {"setting": pa.int32(), "p": pa.int32(), "l": pa.int32()}
                columns = {
                    name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]
                }
                yield pa.RecordBatch.from_pydict(columns)

    return run


def _solved(row: dict[str, Any], weights: Weights, policies: Policies) -> dict[str, Any]:
    rates = on_grid(row["p"], row["l"])
    actions = best_actions(policies.process(rates, weights))
    return {
        **row,
        "publish": rates.publish,
        "leave": rates.leave,
        "omega": weights.omega,
        "message_cost": weights.message_cost,
        "actions": "".join(map(str, actions.ravel().tolist())),
    }


def rate_groups(made: DataFrame) -> list[RateGroup]:
    """Collect the groups of equal rates, largest first; the grid bounds their number."""
    names = ["publish", "leave", "omega", "message_cost"]
    rows = made.groupBy(*names).agg(
        F.count(F.lit(1)).alias("topics"), F.avg("subscribe").alias("subscribe")
    )
    ordered = rows.orderBy(F.desc("topics"), *names).collect()
    return [
        RateGroup(
            Rates(row["publish"], row["subscribe"], row["leave"]),
            Weights(row["omega"], row["message_cost"]),
            row["topics"],
        )
        for row in ordered
    ]


def _collected(made: DataFrame, most: int, base: Policies) -> dict[str, TopicPolicy]:
    shared: dict[str, np.ndarray] = {}
    tables: dict[str, TopicPolicy] = {}
    busiest = made.orderBy(F.desc("subscribe_per_s"), F.desc("publish_per_s"), "topic").limit(most)
    for row in busiest.collect():
        text = row["actions"]
        if text not in shared:
            flat = np.frombuffer(text.encode(), np.uint8) - ord("0")
            shared[text] = flat.reshape(base.caps.table_shape)
        rates = Rates(row["publish"], row["subscribe"], row["leave"])
        weights = Weights(row["omega"], row["message_cost"])
        tables[row["topic"]] = TopicPolicy(shared[text], rates, weights)
    return dict(sorted(tables.items()))


# --- the general policy ---------------------------------------------------------------------------


def _general(
    spark: SparkSession, groups: list[RateGroup], base: Policies, rules: TrainingRules
) -> tuple[GeneralPolicy | None, str, float | None]:
    """Return the general policy, the outcome in words, and its share of the gain at these rates."""
    now = base.general
    share = None if now is None else share_earned(now, groups, base)
    if rules.refit == "never":
        return now, "kept, as asked", share
    if sum(group.topics for group in groups) < 2:
        return now, "kept: one topic says too little about all others", share
    is_good = now is not None and share is not None and share >= _GOOD_ENOUGH
    if rules.refit == "auto" and (is_good or (now is not None and share is None)):
        return now, "kept: it is good at these rates", share
    new = _fitted(spark, groups, base, rules)
    new_share = share_earned(new, groups, base)
    if now is None or (new_share or 0.0) > (share or 0.0):
        return new, "fitted to these rates", new_share
    return now, "kept: a new fit is no better", share


def share_earned(general: GeneralPolicy, groups: list[RateGroup], base: Policies) -> float | None:
    """Return the mean share of the attainable gain, each topic counting once.

    None where nothing can be gained. Only the largest groups are evaluated.
    """
    total, weight = 0.0, 0
    for group in groups[:_GROUPS_JUDGED]:
        process = base.process(replace(group.rates, subscribe=0.2), group.weights)
        share = share_of_gain(process, general.table(group.rates, group.weights, whole_steps=False))
        if not math.isnan(share):
            total += group.topics * share
            weight += group.topics
    return total / weight if weight else None


def _fitted(
    spark: SparkSession, groups: list[RateGroup], base: Policies, rules: TrainingRules
) -> GeneralPolicy:
    """Fit the general policy in a worker: it takes half a minute, and the driver may be small."""
    trained = range_of(groups)
    model = policies_to_text(replace(base, general=None, topics={}))
    how, seed = replace(rules.fit, trained=trained), rules.seed

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        policies = policies_from_text(model)
        for _ in batches:
            found = fit(
                seed=seed, how=how, caps=policies.caps,
                timeliness=policies.timeliness, discount=policies.discount,
            )  # fmt: skip
            text = policies_to_text(replace(policies, general=found))
            yield pa.RecordBatch.from_pydict({"text": [text]})

    row = spark.range(1).repartition(1).mapInArrow(run, "text string").first()
    assert row is not None
    found = policies_from_text(row["text"]).general
    assert found is not None
    return found


def range_of(groups: list[RateGroup]) -> RateRange:
    """Return a range around the rates of these groups, wide enough for tomorrow's rates."""
    publish = [group.rates.publish for group in groups]
    leave = [group.rates.leave for group in groups]
    return RateRange(
        (max(0.02, min(publish) / 1.5), max(0.1, max(publish) * 1.5)), (0.0, max(1.0, *leave))
    )


# --- from one run to the next ---------------------------------------------------------------------


def _compared(
    base: Policies, last: Policies | None, settings: Settings, tables: dict[str, TopicPolicy],
    general: GeneralPolicy | None, groups: list[RateGroup], topics: int, told: str,
    share: float | None,
) -> Trained:  # fmt: skip
    kept = {
        topic: table
        for topic, table in base.topics.items()
        if topic not in tables and _still_holds(topic, table, settings)
    }
    before = last.topics if last is not None else {}
    changed = sum(_decides_otherwise(before.get(topic), table) for topic, table in tables.items())
    gone = len(before.keys() - tables.keys() - kept.keys())
    policies = replace(base, general=general, topics=dict(sorted({**kept, **tables}.items())))
    is_new = last is None or bool(changed or gone) or general is not last.general
    return Trained(
        policies, is_new, topics, len(tables), len(groups), changed, len(kept), told, share
    )


def _decides_otherwise(old: TopicPolicy | None, new: TopicPolicy) -> bool:
    return old is None or old.flat != new.flat


def _still_holds(topic: str, table: TopicPolicy, settings: Settings) -> bool:
    from nearcast.index.topic_filters import topic_matches

    for topic_filter, setting in settings:
        if topic_matches(topic_filter, topic):
            return setting.mode is Mode.LEARNED and setting.weights == table.weights
    return False


def save_trained(trained: Trained, path: Path) -> None:
    """Write the policy file if it changed; the file is replaced atomically."""
    if trained.is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_policies(trained.policies, path)
