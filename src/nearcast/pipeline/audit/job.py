"""`audit`: finds in the event logs of all nodes every wrong delivery, and what stays unknown.

| kind | a delivery that |
|---|---|
| lost | was due and neither happened nor was dropped with a reason |
| doubled | happened more often than was due |
| late | happened after the message's lifetime |
| misordered | happened after that of an effect, or of a later message of the same publisher |
| unasked | happened though no subscription asked for it |

docs/audit.md has the definitions. A task judges one segment of one node (`segments.py`). Rows that
concern several nodes are then joined (`cross_node_join.py`): messages sent and received, by topic
and content (`hops.py`); events published near clients of other nodes (`places.py`); causal groups,
by intervals of time (`causal.py`).
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from nearcast.eventlog import FAULTS, UNKNOWN
from nearcast.eventlog.log_files import Segment, find_segments
from nearcast.model import MisuseError
from nearcast.pipeline.audit.cross_node_join import cross_node_joins
from nearcast.pipeline.audit.hops import Allowance
from nearcast.pipeline.audit.logs import NodeFacts, survey
from nearcast.pipeline.audit.segments import FOUND, Case, as_faults, audit_segment
from nearcast.pipeline.job import JobResult
from nearcast.pipeline.tables.transaction import transaction
from nearcast.pipeline.tables.worker_writes import Batches

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection

KINDS = ("lost", "doubled", "late", "misordered", "unasked")
_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in FOUND.items())


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit.

    `faults` counts by kind; `unknown` and `allowed` by reason. `unknown` also counts the sequence
    numbers that are not in the log, by the reason that the log gives.
    """

    nodes: tuple[str, ...]
    events: int
    deliveries: int
    dropped: int
    faults: dict[str, int]
    unknown: dict[str, int] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault; something may still be unknown."""
        return not any(self.faults.values())

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dict for JSON."""
        return asdict(self) | {"clean": self.is_clean}

    def lines(self, output: str) -> list[str]:
        """Return the result for people."""
        nodes = f"{len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''}"
        lines = [f"{self.events:,} events, {self.deliveries:,} deliveries of {nodes}"]
        lines += [f"{kind:<12}{count:>12,}" for kind, count in self.faults.items()]
        for title, counts in (("unknown", self.unknown), ("allowed", self.allowed)):
            lines += [f"{title:<12}{n:>12,}  {why}" for why, n in sorted(counts.items())]
        if self.dropped:
            lines.append(f"{'dropped':<12}{self.dropped:>12,}  by the nodes, each with a reason")
        return [*lines, "No fault." if self.is_clean else f"Each fault is a row of {output}/faults"]


@dataclass(frozen=True, slots=True)
class AuditJob:
    """Checks the deliveries in the event logs of all nodes."""

    name: ClassVar[str] = "audit"
    logs: Sequence[str]
    output: str
    spaces: tuple[SpaceSection, ...] | None = None
    allowance: Allowance = field(default_factory=Allowance)

    def check(self) -> None:
        """Check that the logs are whole, of this version, and each of other nodes."""
        find_segments(self.logs)

    def run(self, spark: SparkSession) -> JobResult:
        """Write the tables `faults` and `unknown`."""
        done = audit(spark, self.logs, self.output, spaces=self.spaces, allowance=self.allowance)
        code = 0 if done.is_clean else 1
        return JobResult(done.as_dict(), done.lines(self.output), exit_code=code)


def audit(
    spark: SparkSession,
    logs: str | Sequence[str],
    output: str,
    *,
    spaces: tuple[SpaceSection, ...] | None = None,
    allowance: Allowance | None = None,
) -> Audited:
    """Write the tables `faults` and `unknown` under `output`; return the counts.

    `logs` are the directories of the nodes' event logs. Conditions refer to `spaces`; without them
    everything that depends on conditions ($where, $area, $near) is unknown. Raises MisuseError for
    an empty log and FileFormatError for one of another version; then nothing is written.
    """
    case = case_of(spark, logs, spaces, allowance)
    nodes = case.nodes
    found = judge(spark, case).persist()
    try:
        with transaction() as written:
            written.write(as_fault_rows(found), f"{output}/faults", FAULTS)
            written.write(unknown_rows(spark, found, nodes), f"{output}/unknown", UNKNOWN)
        return _summary(found, nodes)
    finally:
        found.unpersist()


def case_of(
    spark: SparkSession,
    logs: str | Sequence[str],
    spaces: tuple[SpaceSection, ...] | None,
    allowance: Allowance | None,
) -> Case:
    """Return what all tasks of an audit share; one task per node reads numbers of its log."""
    segments = find_segments([logs] if isinstance(logs, str) else list(logs))
    nodes = survey_all(spark, segments)
    if not any(facts.rows.get("events") for facts in nodes.values()):
        raise MisuseError(
            "there is no event in the log",
            where=str(logs),
            todo='Run a broker with [log] events = "full"',
        )
    return Case(tuple(segments), nodes, allowance or Allowance(), spaces, uuid.uuid4().hex)


def survey_all(spark: SparkSession, segments: Sequence[Segment]) -> dict[str, NodeFacts]:
    """Return the facts of each node's log; one task per node."""
    of_node: dict[str, list[Segment]] = {}
    for segment in segments:
        of_node.setdefault(segment.node, []).append(segment)
    nodes = sorted(of_node)

    def look(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                facts = pickle.dumps((nodes[number], survey(of_node[nodes[number]])))
                yield pa.RecordBatch.from_pydict({"facts": [facts]})

    rows = spark.range(0, len(nodes), 1, len(nodes)).mapInArrow(look, "facts binary").collect()
    return dict(pickle.loads(row["facts"]) for row in rows)  # noqa: S301 - from our own workers


def judge(spark: SparkSession, case: Case) -> DataFrame:
    """Return all faults, and rows of the kinds `unknown` and `allowed`; the columns are FOUND."""
    count = len(case.segments)
    numbers = spark.range(count).repartition(count)

    def look(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for number in frame["id"]:
                yield audit_segment(case, case.segments[number])

    told = numbers.mapInPandas(look, _SCHEMA)
    if not (case.has_links or any(node.rows.get("causal") for node in case.nodes.values())):
        return told
    told = told.persist()
    parts = told.where(F.col("what") == "fault")
    for what, keys, find in cross_node_joins(case):
        rows = told.where(F.col("what") == what).groupBy(*keys)
        parts = parts.unionAll(rows.applyInPandas(_finding(find), _SCHEMA))
    return parts


def _finding(
    find: Callable[[pd.DataFrame], list[dict[str, Any]]],
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def run(frame: pd.DataFrame) -> pd.DataFrame:
        return as_faults(find(frame))

    return run


def as_fault_rows(found: DataFrame) -> DataFrame:
    """Return the faults among all rows that `judge` found, with their instants."""
    faults = found.where(F.col("kind").isin(list(KINDS)))
    return faults.withColumn("t", F.timestamp_millis("ms"))


def unknown_rows(
    spark: SparkSession, found: DataFrame, nodes: Mapping[str, NodeFacts]
) -> DataFrame:
    """Return unknown verdicts and missing sequence numbers, counted by node and reason."""
    verdicts = found.where(F.col("kind") == "unknown").groupBy("node", "why").agg(
        F.count("*").alias("count"), F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
    )  # fmt: skip
    gaps = [
        (node, f"not in the log: {why}", count, None, None)
        for node, facts in nodes.items()
        for why, count in facts.gaps.items()
    ]
    schema = "node string, why string, count bigint, first bigint, last bigint"
    return verdicts.unionAll(spark.createDataFrame(gaps, schema))


def _summary(found: DataFrame, nodes: Mapping[str, NodeFacts]) -> Audited:
    faults = dict.fromkeys(KINDS, 0)
    others: dict[str, dict[str, int]] = {"unknown": {}, "allowed": {}}
    label = F.when(F.col("kind").isin(list(KINDS)), F.lit("")).otherwise(F.col("why"))
    for row in found.groupBy("kind", label.alias("label")).count().collect():
        if row["kind"] in faults:
            faults[row["kind"]] += row["count"]
        else:
            others[row["kind"]][row["label"]] = row["count"]
    for facts in nodes.values():
        for why, count in facts.gaps.items():
            name = f"not in the log: {why}"
            others["unknown"][name] = others["unknown"].get(name, 0) + count
    events, deliveries, dropped = (
        sum(node.rows.get(name, 0) for node in nodes.values())
        for name in ("events", "deliveries", "drops")
    )
    names = tuple(sorted(nodes))
    return Audited(names, events, deliveries, dropped, faults, others["unknown"], others["allowed"])
