"""How a command starts Spark: requirements are checked first, and progress is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
