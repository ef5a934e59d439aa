"""`nearcast reproduce`: the papers' experiments, verdicts and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.spark import need, started_spark
from nearcast.cli.terminal import JSON, console, print_json

if TYPE_CHECKING:
    from nearcast.papers import RunOutcome


def reproduce(
    *,
    paper: Annotated[
        list[int] | None,
        typer.Option(help="Only this paper (0 to 4); may be given several times.", metavar="N"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: some minutes.")] = False,
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("reproduction"),
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[*]",
    json: bool = JSON,
) -> None:
    r"""Run the experiments of papers 0 to 4 again, and report which claims hold.

    Writes OUT/report.html (one self-contained page), claims.json, rows.json and figures/.
    Needs Java, 'nearcast\[spark]' and 'nearcast\[research]'. Without --quick it takes hours. A
    claim that does not hold is a result, not an error: the exit code is 0. Progress goes to
    stderr, as lines where that is no terminal.

    Example: nearcast reproduce --quick --out reproduction
    """
    from nearcast.papers import reproduce as run
    from nearcast.papers.reproduce import REPORT, check
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.spark_errors import spark_errors_translated

    papers = paper or []
    need("matplotlib", extra="research")
    check(out, papers)
    spark = started_spark(master, as_json=json, name="nearcast-reproduce")
    with spark_errors_translated(str(out)), spark_progress(spark, "reproduce"):
        outcome = run(spark, out, papers=papers, quick=quick)
    if json:
        report = str(out / REPORT)
        print_json({"verdicts": outcome.verdicts(), "report": report, "run": dict(outcome.facts)})
        return
    _print(outcome)
    typer.echo(f"Report: {out / REPORT} ({outcome.facts['seconds']} s)")


def _print(outcome: RunOutcome) -> None:
    from rich.table import Table

    table = Table(title="Claims", title_justify="left")
    for heading in ("claim", "reading", "measured", "verdict"):
        table.add_column(heading)
    for paper in outcome.papers:
        for claim in paper.claims:
            verdict = "holds" if claim.holds else "does not hold"
            reading = "; ".join(text for text in (claim.variant, claim.reading) if text)
            table.add_row(claim.id, reading, claim.measured, verdict)
    console().print(table)
