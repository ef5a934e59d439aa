"""`nearcast pipeline …`: the Spark jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.terminal import JSON, print_json

app = typer.Typer(help="Run a job on Spark.", no_args_is_help=True)

Master = Annotated[str, typer.Option(help="The Spark master: local[*], spark://host:port, yarn …")]
Input = Annotated[str, typer.Option("--input", help="What to read: a file or a table.")]
Output = Annotated[str, typer.Option("--output", help="The directory for the job's tables.")]


@app.command()
def ingest(
    *,
    input: Input,  # noqa: A002 - the option's name
    output: Output,
    columns: Annotated[
        str, typer.Option(help="Which column is which: user_id=cab,t=time,lon=x,lat=y")
    ] = "",
    timezone: Annotated[str, typer.Option(help="The zone of instants that name none.")] = "UTC",
    max_speed: Annotated[float, typer.Option(help="Metres per second; faster is an error.")] = 70.0,
    gap: Annotated[float, typer.Option(help="Seconds without a fix that end a trip.")] = 600.0,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Turn GPS files into a clean table of positions; what is dropped is kept with the reason.

    Reads CSV, JSON lines, Parquet and GeoParquet. Writes the tables OUTPUT/positions and
    OUTPUT/rejected.

    Example: nearcast pipeline ingest --input cabs.csv --output city --columns t=time,user_id=cab
    """
    from nearcast.pipeline import ingest as job
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.session import spark_session
    from nearcast.pipeline.sources import read_source

    names = _mapping(columns, job.COLUMNS)
    cleaning = job.Cleaning(max_speed, gap, timezone)
    spark = spark_session(master)
    with spark_progress(spark, "ingest"):
        done = job.ingest(read_source(spark, input, names), output, cleaning)
    if json:
        print_json({"kept": done.kept, "rejected": done.rejected, "output": output})
        return
    typer.echo(f"{done.kept:,} positions in {output}/positions")
    for reason, count in sorted(done.rejected.items()):
        typer.echo(f"{count:,} rows dropped: {reason} (see {output}/rejected)")


@app.command()
def regions(
    *,
    input: Input,  # noqa: A002 - the option's name
    output: Output,
    cell: Annotated[float, typer.Option(help="Side of a cell in metres.")] = 150.0,
    slow: Annotated[
        float, typer.Option(help="Metres per second up to which a step is slow.")
    ] = 1.5,
    slow_share: Annotated[float, typer.Option(help="Share of a cell's time that is slow.")] = 0.5,
    density: Annotated[
        float, typer.Option(help="Times the time in an average visited cell.")
    ] = 3.0,
    min_cells: Annotated[int, typer.Option(help="Fewer connected cells are noise.")] = 2,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find slow moving regions: where things are dense, slow and connected.

    Reads the table that 'ingest' wrote. Writes the tables OUTPUT/cells and OUTPUT/regions, a map
    OUTPUT/regions.geojson and a picture OUTPUT/regions.png.

    Example: nearcast pipeline regions --input city/positions --output city
    """
    from nearcast.locality.slow_regions import RegionRules
    from nearcast.pipeline import regions as job
    from nearcast.pipeline.pictures import draw_regions
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.session import spark_session
    from nearcast.pipeline.tables import read_table

    rules = RegionRules(slow, slow_share, density, min_cells)
    spark = spark_session(master)
    with spark_progress(spark, "regions"):
        found = job.find_regions(read_table(spark, input), output, cell, rules)
        job.write_geojson(found, Path(output) / "regions.geojson")
        draw_regions(read_table(spark, f"{output}/cells"), found, Path(output) / "regions.png")
    if json:
        print_json({"regions": len(found.regions), "slow_cells": len(found.slow_cells)})
        return
    typer.echo(f"{len(found.regions)} slow moving regions of {len(found.slow_cells)} slow cells")
    for number, region in enumerate(found.regions[:10]):
        west, south, east, north = region.bounds
        typer.echo(
            f"  {number}: {region.use.dwell_s / 3600:,.0f} h at "
            f"{region.use.distance_m / region.use.dwell_s:.1f} m/s in "
            f"[{west:.4f}, {east:.4f}] x [{south:.4f}, {north:.4f}]"
        )
    typer.echo(f"Map: {output}/regions.geojson; picture: {output}/regions.png")


def _mapping(text: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Read 'a=b,c=d' over the names that a job wants."""
    from nearcast.model.errors import MisuseError

    names = {name: name for name in wanted}
    for pair in filter(None, text.split(",")):
        want, equals, source = (part.strip() for part in pair.partition("="))
        if want not in names or not equals or not source:
            raise MisuseError(
                repr(pair),
                where="--columns",
                expected=f"NAME=COLUMN with a name of {', '.join(wanted)}",
            )
        names[want] = source
    return names
