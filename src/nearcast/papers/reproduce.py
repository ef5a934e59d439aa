"""Runs the papers: sweep, judge, draw, write. Old files stay until all new ones are ready."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.model.errors import EnvironmentProblem
from nearcast.papers.form import Experiment, Point, Row
from nearcast.papers.registry import chosen
from nearcast.papers.report import PaperOutcome, RunOutcome, page
from nearcast.papers.sweep import all_points, rows_by_paper, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT = "report.html"
_PACKAGES = ("nearcast", "numpy", "numba", "pyspark", "matplotlib")


def check(out: Path, papers: Sequence[int]) -> None:
    """Raise before anything starts if a paper, matplotlib or a writable folder is missing."""
    chosen(papers)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise EnvironmentProblem(
            "matplotlib, which draws the figures, is not installed",
            todo="pip install 'nearcast[research]'",
        ) from None
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"nothing can be written there ({error.strerror})",
            where=str(out),
            todo="Name another folder with --out",
        ) from None


def reproduce(
    spark: SparkSession,
    out: Path,
    *,
    papers: Sequence[int] = (),
    quick: bool = False,
    points: Sequence[Point] | None = None,
) -> RunOutcome:
    """Run every experiment of the papers and write report.html, claims.json, rows.json, figures/.

    `points` replaces the papers' own lists of points. An error or an interruption leaves the files
    of an earlier run.
    """
    check(out, papers)
    wanted = chosen(papers)
    start = time.monotonic()
    tasks = list(points) if points is not None else all_points(wanted, quick=quick)
    finished = sweep(spark, tasks)
    rows = rows_by_paper(finished)
    facts = _facts(quick=quick, tasks=len(tasks), processor_s=sum(d.processor_s for d in finished))
    judged = [_judged(number, paper, rows[number]) for number, paper in wanted.items()]
    facts["seconds"] = f"{time.monotonic() - start:.0f}"
    outcome = RunOutcome(tuple(judged), facts)
    _write(outcome, rows, out)
    return outcome


def _judged(number: int, paper: Experiment, rows: Sequence[Row]) -> PaperOutcome:
    return PaperOutcome(
        number, tuple(paper.claims(rows)), tuple(paper.figures(rows)), tuple(paper.tables(rows))
    )


def _facts(*, quick: bool, tasks: int, processor_s: float) -> dict[str, str]:
    return {
        "mode": "quick" if quick else "full",
        "tasks": f"{tasks:,}",
        "processor seconds of tasks": f"{processor_s:,.0f}",
        "cores": str(os.cpu_count()),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


# --- files --------------------------------------------------------------------------------------


def _write(outcome: RunOutcome, rows: dict[int, list[Row]], out: Path) -> None:
    """Write all files to a temporary folder, then move them into place, the report last."""
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=out))
    try:
        (fresh / "figures").mkdir()
        for paper in outcome.papers:
            for figure in paper.figures:
                (fresh / "figures" / f"{figure.name}.svg").write_bytes(figure.svg)
        records = [claim.record() for paper in outcome.papers for claim in paper.claims]
        _dump(records, fresh / "claims.json")
        _dump({str(number): some for number, some in rows.items()}, fresh / "rows.json")
        (fresh / REPORT).write_text(page(outcome), encoding="utf-8")
        _move(fresh, out)
    except OSError as error:
        raise EnvironmentProblem(
            f"the report cannot be written ({error.strerror})",
            where=str(out),
            todo="Free some space and run again",
        ) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _dump(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str), encoding="utf-8")


def _move(fresh: Path, out: Path) -> None:
    (out / "figures").mkdir(exist_ok=True)
    for old in (out / "figures").glob("paper-*.svg"):
        old.unlink()
    for figure in (fresh / "figures").iterdir():
        figure.replace(out / "figures" / figure.name)
    for name in ("rows.json", "claims.json", REPORT):
        (fresh / name).replace(out / name)
