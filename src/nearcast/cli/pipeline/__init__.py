"""`nearcast pipeline …`: a command for each job.

A command turns options into the job's class and passes it to `run_job` (`cli/spark.py`), which
checks the input, starts Spark and prints the result.
"""

from __future__ import annotations

import typer

from nearcast.cli.pipeline.jobs import audit, histogram, ingest, match, regions
from nearcast.cli.pipeline.learning import plan, train
from nearcast.cli.pipeline.run import run
from nearcast.cli.pipeline.stream import stream
from nearcast.cli.pipeline.whatif import whatif

app = typer.Typer(help="Run a job on Spark.", no_args_is_help=True)
for command in (ingest, regions, match, stream, plan, histogram, train, run, audit, whatif):
    app.command()(command)
