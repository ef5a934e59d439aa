"""How commands use Spark: requirements are checked first, and progress is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.pipeline.job import Job

Master = Annotated[str, typer.Option(help="The Spark master: local[*], spark://host:port, yarn …")]


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


def started_spark(master: str, *, as_json: bool, name: str = "nearcast") -> SparkSession:
    """Return a Spark session; reports on standard error that it is starting."""
    from nearcast.pipeline.session import check_master, check_spark, spark_session

    check_master(master)
    check_spark()
    if not as_json:
        typer.echo(f"Starting Spark ({master}) ...", err=True)
    return spark_session(master, name=name)


def run_job(job: Job, master: str, *, as_json: bool) -> None:
    """Check the input, start Spark, run the job, and print its result."""
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.spark_errors import spark_errors_translated

    job.check()
    spark = started_spark(master, as_json=as_json)
    with spark_errors_translated(job.output), spark_progress(spark, job.name):
        result = job.run(spark)
        result.save()
    if as_json:
        print_json({**result.fields, **result.files})
    else:
        for line in result.lines:
            typer.echo(line)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
