"""What a batch job is: checks that need no Spark, the work, and the result for people and JSON.

A job is declared once, as a class in its module. `nearcast pipeline <name>` and `run` both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _nothing() -> None:
    """Write no file."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job.

    `save` writes the files that brokers load: `run` calls it when all jobs are done.
    """

    fields: dict[str, Any]  # for JSON and for the comparison with the last run
    lines: Sequence[str]  # for people
    files: dict[str, str] = field(default_factory=dict)  # what was written, for JSON
    exit_code: int = 0
    save: Callable[[], None] = _nothing


class Job(Protocol):
    """A batch job with its options."""

    name: ClassVar[str]

    @property
    def output(self) -> str:
        """The directory that the job writes to."""

    def check(self) -> None:
        """Raise MisuseError or FileFormatError for bad input; Spark takes seconds to start."""

    def run(self, spark: SparkSession) -> JobResult:
        """Do the work and write the job's tables."""
