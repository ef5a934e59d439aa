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
from typing import Annotated, Any, NamedTuple

import typer

from nearcast.cli.terminal import JSON, console, print_json

app = typer.Typer(help="Measure Nearcast and its peers side by side.", no_args_is_help=True)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, for everyday use.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the figures as JSON.")
]

Positions = Annotated[
    str | None, typer.Option(help="A file of real positions, to measure with these too.")
]

_PACKAGES = ("numpy", "numba", "shapely", "rtree", "superintervals", "intervaltree", "pyspark")


class Benchmark(NamedTuple):
    """A command, the modules of `benchmarks/` that it runs, and its help."""

    name: str
    modules: tuple[str, ...]
    help: str
    takes_positions: bool = False


_ALL = (
    Benchmark(
        "match",
        ("intervals", "boxes", "matcher"),
        "Measure indexes and matcher: exact and ranked matching, up to ten million subscriptions.",
    ),
    Benchmark(
        "order",
        ("ordering",),
        "Measure Δ-causal delivery and three other algorithms: bytes, computation, memory.",
    ),
    Benchmark("broker", ("broker",), "Measure the broker and Mosquitto, per second of broker CPU."),
    Benchmark(
        "workers",
        ("workers",),
        "Measure two workers beside one process, per second of CPU: local, random and crossing.",
    ),
    Benchmark(
        "dashboard",
        ("dashboard",),
        "Measure what the open page costs the broker, with thousands of clients that move.",
    ),
    Benchmark(
        "selective",
        ("selective",),
        "Measure `$where` and `$near`: against plain topics, and geohash topics on Mosquitto.",
    ),
    Benchmark(
        "retained",
        ("retained",),
        "Measure retained policies: decisions, estimators, learning, share of the gain.",
    ),
    Benchmark(
        "plan", ("locality",), "Measure the Q+R plan: building, finding leaves, deciding handovers."
    ),
    Benchmark("overlay", ("overlay",), "Measure the content overlay: joining, routing, hops."),
    Benchmark(
        "network",
        ("network", "causal_cluster"),
        "Measure nodes over NATS: the cost of crossing, what crosses, latency, causal order.\n\n"
        "Causal order is measured over NATS servers in network namespaces (needs root).",
    ),
    Benchmark(
        "pipeline",
        ("pipeline",),
        "Measure the Spark jobs: matching, compared with the bare kernel, SQL and Sedona; regions, "
        "streams.",
        takes_positions=True,
    ),
    Benchmark(
        "learning",
        ("learning",),
        "Measure the learning jobs: plan, train, a whole nightly run.",
        takes_positions=True,
    ),
)


def _register(one: Benchmark) -> None:
    def plain(*, quick: Quick = False, out: Out = None, json: bool = JSON) -> None:
        _run(one.name, one.modules, out, quick=quick, as_json=json)

    def moving(
        *,
        quick: Quick = False,
        out: Out = None,
        json: bool = JSON,
        positions: Positions = None,
    ) -> None:
        _run(one.name, one.modules, out, quick=quick, as_json=json, positions=positions)

    text = f"{one.help}\n\nExample: nearcast bench {one.name} --quick --out {one.name}.json"
    app.command(one.name, help=text)(moving if one.takes_positions else plain)


for benchmark in _ALL:
    _register(benchmark)


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
        if result.get("missing"):
            _say(f"Peers that are not here: {', '.join(result['missing'])}", as_json=as_json)
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
    return row.get("peers", row.get("peer"))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
