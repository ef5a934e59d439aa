"""`nearcast pipeline ingest`, `regions`, `match`, `histogram` and `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.pipeline.options import Day, Input, Logs, Output, Since, loaded
from nearcast.cli.spark import (
    Config,
    ConfigFile,
    Master,
    Rank,
    SpaceName,
    TableFormat,
    Top,
    TopicOfEvents,
    match_query,
    run_job,
    space_section,
)
from nearcast.cli.terminal import JSON
from nearcast.model.errors import MisuseError, OutOfRangeError

if TYPE_CHECKING:
    from nearcast.pipeline.job import Job


def ingest(
    *,
    input: Input,  # noqa: A002 - the option's name
    output: Output,
    columns: Annotated[
        str, typer.Option(help="The names of columns in the file: user_id=cab,t=time,lon=x,lat=y")
    ] = "",
    timezone: Annotated[
        str, typer.Option(help="The time zone of timestamps that have none.")
    ] = "UTC",
    max_speed: Annotated[float, typer.Option(help="Metres per second; faster is an error.")] = 70.0,
    gap: Annotated[float, typer.Option(help="Seconds without a position that end a trip.")] = 600.0,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="Add a column of points, as GeoParquet has them.")
    ] = False,
    cells: Annotated[
        int | None,
        typer.Option(min=1, max=28, help="Add a column with cells: the globe halved so often."),
    ] = None,
    since: Since = "",
    date: Day = "",
    space: Annotated[str, typer.Option(help="Read events of this space, not positions.")] = "",
    config: ConfigFile = Path("nearcast.toml"),
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Read GPS or event files into a clean table; dropped rows are kept with the reason.

    Reads CSV, JSON lines, Parquet, GeoParquet, and the event log of a broker. Writes the tables
    OUTPUT/positions (with --space: OUTPUT/events) and OUTPUT/rejected; for positions also a report,
    OUTPUT/quality and OUTPUT/quality.html. With --date, one day of the table is replaced.

    Example: nearcast pipeline ingest --input cabs.csv --output city --columns t=time,user_id=cab
    """
    from nearcast.pipeline.jobs.ingest import COLUMNS, Cleaning, IngestJob
    from nearcast.pipeline.sources.period import Period
    from nearcast.pipeline.tables.places import PlaceColumns

    job: Job
    if space and (since or date):
        raise MisuseError(
            "--since or --date with --space", where="ingest", expected="them for positions"
        )
    if space:
        job = _ingest_events(input, output, columns, timezone, space, config)
    else:
        period = Period.of(since, date, timezone)
        places = PlaceColumns(geometry, cells)
        cleaning = Cleaning(max_speed, gap, timezone, columns=places, period=period)
        job = IngestJob([input], output, _mapping(columns, COLUMNS), cleaning)
    run_job(job, master, as_json=json, table_format=format)


def _ingest_events(
    path: str, output: str, columns: str, timezone: str, space: str, config: Path
) -> Job:
    from nearcast.eventlog.log_files import is_event_log
    from nearcast.pipeline.jobs.ingest_events import IngestEventsJob
    from nearcast.pipeline.sources.column_types import EVENT_DETAILS, EVENT_KEY

    section = space_section(config, space)
    if section.values == "properties" and is_event_log(path):
        raise MisuseError(
            f"the space {space!r}, whose values are in user properties",
            where=path,
            expected="a space with values in the payload: the log has no properties",
        )
    declared = section.to_space()
    names = (EVENT_KEY, *EVENT_DETAILS, *(each.name for each in declared.attributes))
    return IngestEventsJob([path], output, declared, _mapping(columns, names), timezone)


def _mapping(text: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the mapping 'a=b,c=d' over the column names of a job."""
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
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find slow regions: where users are dense, slow and connected.

    Reads the table that 'ingest' wrote. Writes the tables OUTPUT/cells and OUTPUT/regions, a map
    OUTPUT/regions.geojson and a picture OUTPUT/regions.png.

    Example: nearcast pipeline regions --input city/positions --output city
    """
    from nearcast.locality.layout.slow_regions import RegionRules
    from nearcast.pipeline.jobs.regions import RegionsJob

    rules = RegionRules(slow, slow_share, density, min_cells)
    run_job(RegionsJob(input, output, cell, rules), master, as_json=json, table_format=format)


def match(
    *,
    input: Input,  # noqa: A002 - the option's name
    subscriptions: Annotated[str, typer.Option(help="The subscription table or file.")],
    output: Output,
    space: SpaceName,
    topic: TopicOfEvents = "",
    top: Top = None,
    rank: Rank = "narrowest",
    config: ConfigFile = Path("nearcast.toml"),
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Match a table of events with a table of subscriptions: exact, ranked, the k best.

    Writes the tables OUTPUT/deliveries and OUTPUT/rejected_events.

    Example: nearcast pipeline match --space shops --input events.parquet
    --subscriptions subscriptions.parquet --output found --top 5
    """
    from nearcast.pipeline.jobs.match_job import MatchJob

    declared = space_section(config, space).to_space()
    query = match_query(declared, topic, top, rank)
    run_job(
        MatchJob(input, subscriptions, output, declared, query),
        master,
        as_json=json,
        table_format=format,
    )


def histogram(
    *,
    input: Annotated[str, typer.Option("--input", help="The table of events.")],  # noqa: A002
    output: Output,
    space: SpaceName,
    config: Config = None,
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Count where events lie in their space: densities for the overlay's elections.

    Reads a table that 'ingest --space' wrote. Writes OUTPUT/histogram-SPACE.json.

    Example: nearcast pipeline histogram --space shops --input city/events --output city
    """
    from nearcast.pipeline.jobs.histogram import HistogramJob

    declared = space_section(config or Path("nearcast.toml"), space).to_space()
    run_job(HistogramJob(input, output, declared), master, as_json=json, table_format=format)


def audit(
    *,
    input: Logs,  # noqa: A002 - the option's name
    output: Output,
    config: Annotated[
        Path | None, typer.Option(help="Where spaces are declared: to check $where, $area, $near.")
    ] = None,
    skew: Annotated[
        float, typer.Option(help="Seconds by which the clocks of nodes may differ.")
    ] = 1.0,
    settle: Annotated[
        float,
        typer.Option(help="Seconds until all nodes know a change, or have got a message."),
    ] = 5.0,
    format: TableFormat = "auto",  # noqa: A002 - the option's name
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Find every lost, doubled, late or misordered delivery in the event logs of all nodes.

    Writes the tables OUTPUT/faults and OUTPUT/unknown. The exit code is 1 if there is a fault.

    Example: nearcast pipeline audit --input a/eventlog --input b/eventlog --output audit
    """
    from nearcast.pipeline.audit.hops import Allowance
    from nearcast.pipeline.audit.job import AuditJob

    spaces = None if config is None else tuple(loaded(config).space)
    allowance = Allowance(_milliseconds(skew, "--skew"), _milliseconds(settle, "--settle"))
    run_job(AuditJob(input, output, spaces, allowance), master, as_json=json, table_format=format)


def _milliseconds(seconds: float, where: str) -> int:
    if not 0 <= seconds <= 86_400:
        raise OutOfRangeError(f"{seconds:g}", where=where, expected="0 to 86400 seconds")
    return round(seconds * 1000)
