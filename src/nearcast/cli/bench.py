"""The command `nearcast bench …`: our software and peers side by side in one run.

The benchmarks are in `benchmarks/` of a checkout, outside the installed package: they need peers
that a user of the broker does not. Each module there has `run(quick) -> {"rows": [...]}`.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.cli.terminal import JSON, console, print_json

app = typer.Typer(help="Measure Nearcast and its peers side by side.", no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, for everyday use.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the figures as JSON.")
]

_PACKAGES = ("numpy", "numba", "shapely", "rtree", "superintervals", "intervaltree", "pyspark")


@app.command()
def match(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure indexes and matcher: exact and ranked matching at up to ten million subscriptions.

    Example: nearcast bench match --quick --out match.json
    """
    _run("match", ("intervals", "boxes", "matcher"), out, quick=quick, as_json=json)


@app.command()
def order(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure Δ-causal delivery beside three other algorithms: bytes, computation, memory.

    Example: nearcast bench order --quick
    """
    _run("order", ("ordering",), out, quick=quick, as_json=json)


@app.command()
def broker(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure the broker beside Mosquitto, per second of broker CPU.

    Example: nearcast bench broker --quick
    """
    _run("broker", ("broker",), out, quick=quick, as_json=json)


@app.command()
def selective(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure `$where` and `$near`: beside plain topics, and beside geohash topics on Mosquitto.

    Example: nearcast bench selective --quick
    """
    _run("selective", ("selective",), out, quick=quick, as_json=json)


@app.command()
def retained(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure retained policies: decisions, estimators, learning, share of the gain.

    Example: nearcast bench retained --quick
    """
    _run("retained", ("retained",), out, quick=quick, as_json=json)


@app.command()
def plan(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure the Q+R plan: building, finding leaves, deciding on handovers.

    Example: nearcast bench plan --quick
    """
    _run("plan", ("locality",), out, quick=quick, as_json=json)


@app.command()
def overlay(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure the content overlay: joining, routing, hops.

    Example: nearcast bench overlay --quick
    """
    _run("overlay", ("overlay",), out, quick=quick, as_json=json)


@app.command()
def network(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
    """Measure several nodes over NATS: the cost of crossing, what crosses, latency, causal order.

    Causal order is measured over a cluster of NATS servers in network namespaces (needs root).

    Example: nearcast bench network --quick
    """
    _run("network", ("network", "causal_cluster"), out, quick=quick, as_json=json)


@app.command()
def pipeline(
    *,
    quick: Quick = False,
    out: Out = None,
    json: bool = JSON,
    positions: Annotated[
        str | None, typer.Option(help="A file of real positions for 'regions'.")
    ] = None,
) -> None:
    """Measure the Spark jobs: matching beside the bare kernel, SQL and Sedona; regions, streams.

    Example: nearcast bench pipeline --quick
    """
    _run("pipeline", ("pipeline",), out, quick=quick, as_json=json, positions=positions)


@app.command()
def learning(
    *,
    quick: Quick = False,
    out: Out = None,
    json: bool = JSON,
    positions: Annotated[
        str | None, typer.Option(help="A file of real positions for 'run'.")
    ] = None,
) -> None:
    """Measure the learning jobs: plan, train, a whole nightly run.

    Example: nearcast bench learning --quick
    """
    _run("learning", ("learning",), out, quick=quick, as_json=json, positions=positions)


def _run(
    name: str,
    modules: tuple[str, ...],
    path: Path | None,
    *,
    quick: bool,
    as_json: bool,
    **more: object,
) -> None:
    """Run benchmark modules one after the other, print their rows and store them."""
    loaded = {module: _module(module) for module in modules}
    rows: list[dict[str, Any]] = []
    _say("; ".join(f"{what} {value}" for what, value in machine().items()), as_json=as_json)
    for module, benchmark in loaded.items():
        result = benchmark.run(quick=quick, **more)
        if "skipped" in result:
            _say(f"{module} is skipped: {result['skipped']}", as_json=as_json)
        if not as_json:
            print_rows(module, result["rows"])
        rows += [{"benchmark": module, **row} for row in result["rows"]]
    losses = [row["name"] for row in rows if row.get("holds") is False]
    lost = "; ".join(losses) or "nowhere in this run"
    _say(f"Where we lose or miss a target: {lost}", as_json=as_json)
    figures = {"bench": name, "quick": quick, "machine": machine(), "rows": rows}
    if path is not None:
        import json

        path.write_text(json.dumps(figures, indent=2, default=str), encoding="utf-8")
        _say(f"Wrote {path}", as_json=as_json)
    if as_json:
        print_json(figures)


def _say(text: str, *, as_json: bool) -> None:
    """Print a line for people; to standard error where the results go to a machine."""
    typer.echo(text, err=as_json)


def _module(name: str) -> Any:
    """Import a module of the checkout's `benchmarks/`."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / f"{name}.py").exists():
        from nearcast.model.errors import EnvironmentProblem

        raise EnvironmentProblem(
            "the benchmarks are not part of the installed package",
            where=f"benchmarks/{name}.py",
            todo="Run from a checkout: make bench",
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(f"benchmarks.{name}")


def machine() -> dict[str, str]:
    """Return the machine and the versions of a measurement."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    cores = str(os.cpu_count())
    return {"machine": platform.machine(), "cores": cores, "system": platform.system(), **versions}


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a benchmark's rows as a table: our result, the peer's, the ratio, the target."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in ("what", "ours", "peer", "ratio", "target", "holds"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        holds = {True: "yes", False: "NO", None: ""}[row.get("holds")]
        cells = (row["name"], row.get("ours"), _peer(row), row.get("ratio"), row.get("target"))
        table.add_row(*(_cell(cell) for cell in cells), holds)
    console().print(table)


def _peer(row: dict[str, Any]) -> object:
    """Return the peers of a row with their results, however the benchmark names them."""
    if row.get("peer_figure"):
        return {row["peer"]: row["peer_figure"]}
    return row.get("peer", row.get("peers"))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
