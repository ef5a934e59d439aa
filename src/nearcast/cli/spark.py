"""What commands that run on Spark share: options, the checks before a start, and progress."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearcast.cli.terminal import print_json
from nearcast.model.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.config.schema import SpaceSection
    from nearcast.locality import Rect
    from nearcast.model import Space
    from nearcast.pipeline.job import Job
    from nearcast.pipeline.jobs.match import MatchQuery

Master = Annotated[
    str,
    typer.Option(help="The Spark master: local[*], spark://host:port, sc://host:port, yarn …"),
]
TableFormat = Annotated[
    Literal["auto", "parquet", "delta", "iceberg"],
    typer.Option(
        "--format",
        help="The format of tables. auto: what is there, Delta where Spark has it, else Parquet.",
    ),
]
Config = Annotated[Path | None, typer.Option(help="The configuration file of the brokers.")]
ConfigFile = Annotated[Path, typer.Option(help="Where the space is declared.")]
SpaceName = Annotated[str, typer.Option("--space", help="The space that the events belong to.")]
TopicOfEvents = Annotated[str, typer.Option("--topic", help="The topic of the events.")]
Top = Annotated[int | None, typer.Option(min=1, help="Only the k best of each event.")]
Rank = Annotated[
    str, typer.Option(help="narrowest, nearest, centre, weight, or narrowest:0.7,weight:0.3.")
]


def need(*modules: str, extra: str) -> None:
    """Raise EnvironmentProblem, with what to install, unless these packages are installed."""
    from importlib.util import find_spec

    from nearcast.model.errors import EnvironmentProblem

    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise EnvironmentProblem(
            f"{' and '.join(missing)} {verb} not installed",
            todo=f"Install: pip install 'nearcast[{extra}]'",
        )


def started_spark(
    master: str,
    *,
    as_json: bool,
    name: str = "nearcast",
    table_format: str = "auto",
    paths: Sequence[str] = (),
    libraries: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session; reports on standard error that it is starting.

    It has what the format of the tables and these paths need, and `libraries`: settings such as
    `spark.jars`.
    """
    from nearcast.pipeline.packages import package_settings
    from nearcast.pipeline.session import check_master, check_spark, spark_session

    check_master(master)
    check_spark(master)
    if not as_json:
        typer.echo(f"Starting Spark ({master}) ...", err=True)
    more = {**package_settings(table_format, paths), **(libraries or {})}
    spark = spark_session(master, name=name, more=more)
    spark.conf.set("spark.nearcast.table.format", table_format)
    return spark


def paths_of(job: object) -> list[str]:
    """Return the texts among a job's options: paths and URLs are some of them."""
    found: list[str] = []
    for value in (getattr(job, name, None) for name in getattr(job, "__slots__", ())):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [one for one in value if isinstance(one, str)]
    return found


def run_job(job: Job, master: str, *, as_json: bool, table_format: str = "auto") -> None:
    """Check the input, start Spark, run the job, and print its result."""
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.spark_errors import spark_errors_translated

    with spark_errors_translated(job.output):
        job.check()
    spark = started_spark(master, as_json=as_json, table_format=table_format, paths=paths_of(job))
    with spark_errors_translated(job.output), spark_progress(spark, job.name, lines=not as_json):
        result = job.run(spark)
        result.save()
    if as_json:
        print_json({**result.fields, **result.files})
    else:
        for line in result.lines:
            typer.echo(line)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def space_section(config: Path, name: str) -> SpaceSection:
    """Return the section of a space in a configuration file."""
    from nearcast.config import load
    from nearcast.model.errors import UnknownNameError

    sections = {section.name: section for section in load(config, os.environ).space}
    if name not in sections:
        expected = f"one of {', '.join(sections)}" if sections else "a [[space]] there"
        raise UnknownNameError(f"the space {name!r}", where=str(config), expected=expected)
    return sections[name]


def match_query(space: Space, topic: str, top: int | None, rank: str) -> MatchQuery:
    """Return the query of `--topic`, `--top` and `--rank`; tables may have no topics."""
    from nearcast.matching.ranking import checked_rank
    from nearcast.pipeline.jobs.match import MatchQuery

    matching = topic or space.topic_filter.replace("+", "x").replace("#", "x")
    return MatchQuery(space.name, matching, top, checked_rank(rank))


def parsed_bounds(text: str) -> Rect | None:
    """Return the rectangle of `--bounds`; None without one."""
    from nearcast.locality.layout.rect import checked_rect

    if not text:
        return None
    try:
        return checked_rect([float(part) for part in text.split(",")], "--bounds")
    except ValueError as problem:
        if isinstance(problem, MisuseError):
            raise
        raise MisuseError(
            repr(text), where="--bounds", expected="four numbers: west,south,east,north"
        ) from None
