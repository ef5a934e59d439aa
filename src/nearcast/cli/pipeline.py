"""`nearcast pipeline …`: the Spark jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli import auditing, learning
from nearcast.cli.sparking import started_spark
from nearcast.cli.terminal import JSON, print_json, report_fields

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection
    from nearcast.model import Space
    from nearcast.pipeline.streaming.live_stream import Live

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
    space: Annotated[str, typer.Option(help="Read events of this space, not positions.")] = "",
    config: Annotated[Path, typer.Option(help="Where the space is declared.")] = Path(
        "nearcast.toml"
    ),
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Turn GPS or event files into a clean table; what is dropped is kept with the reason.

    Reads CSV, JSON lines, Parquet, GeoParquet, and the event log of a broker. Writes the tables
    OUTPUT/positions (with --space: OUTPUT/events) and OUTPUT/rejected.

    Example: nearcast pipeline ingest --input cabs.csv --output city --columns t=time,user_id=cab
    """
    from nearcast.model.errors import MisuseError
    from nearcast.pipeline.jobs import ingest as job
    from nearcast.pipeline.jobs.ingest_events import ingest_events
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.event_logs import is_event_log
    from nearcast.pipeline.sources.files import read_events, read_source
    from nearcast.pipeline.sources.input_checks import check_source
    from nearcast.pipeline.spark_errors import told_plainly

    section = _section(config, space) if space else None
    if section and section.values == "properties" and is_event_log(input):
        raise MisuseError(
            f"the space {space!r}, whose values are in user properties",
            where=input,
            expected="a space with values in the payload: the log keeps no properties",
        )
    declared = section.to_space() if section else None
    names = _mapping(columns, _event_columns(declared) if declared else job.COLUMNS)
    cleaning = job.Cleaning(max_speed, gap, timezone)
    renamed = {want: source for want, source in names.items() if want != source}
    check_source(input, renamed if declared else names)
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "ingest"):
        if declared:
            events = read_events(spark, input, declared, names)
            done = ingest_events(events, output, declared, timezone)
        else:
            done = job.ingest(read_source(spark, input, names), output, cleaning)
    if json:
        print_json({"kept": done.kept, "rejected": done.rejected, "output": output})
        return
    what = "events" if declared else "positions"
    typer.echo(f"{done.kept:,} {what} in {output}/{what}")
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
    from nearcast.locality.layout.slow_regions import RegionRules
    from nearcast.pipeline.jobs import regions as job
    from nearcast.pipeline.pictures import draw_regions
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.input_checks import check_table
    from nearcast.pipeline.spark_errors import told_plainly
    from nearcast.pipeline.tables.transaction import read_table

    rules = RegionRules(slow, slow_share, density, min_cells)
    check_table(input)
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "regions"):
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


@app.command()
def match(
    *,
    input: Input,  # noqa: A002 - the option's name
    subscriptions: Annotated[str, typer.Option(help="The subscription table or file.")],
    output: Output,
    space: Annotated[str, typer.Option(help="The space that the events belong to.")],
    topic: Annotated[str, typer.Option(help="The topic of the events.")] = "",
    top: Annotated[int | None, typer.Option(min=1, help="Only the k best of each event.")] = None,
    rank: Annotated[str, typer.Option(help="narrowest, nearest, centre or weight.")] = "narrowest",
    config: Annotated[Path, typer.Option(help="Where the space is declared.")] = Path(
        "nearcast.toml"
    ),
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Match a table of events with a table of subscriptions, exactly, ranked and cut at k.

    Writes the tables OUTPUT/deliveries and OUTPUT/rejected_events.

    Example: nearcast pipeline match --space shops --input events.parquet
    --subscriptions wishes.parquet --output found --top 5
    """
    from nearcast.matching.ranking import checked_rank
    from nearcast.pipeline.jobs.match import MatchQuery
    from nearcast.pipeline.jobs.match_job import match_tables
    from nearcast.pipeline.progress import spark_progress
    from nearcast.pipeline.sources.files import read_all
    from nearcast.pipeline.sources.input_checks import check_there
    from nearcast.pipeline.spark_errors import told_plainly

    declared = _space(config, space)
    question = MatchQuery(
        space, topic or _some_topic(declared.topic_filter), top, checked_rank(rank)
    )
    for path in (input, subscriptions):
        check_there(path)
    spark = started_spark(master, as_json=json)
    with told_plainly(output), spark_progress(spark, "match"):
        events, wishes = read_all(spark, input), read_all(spark, subscriptions)
        done = match_tables(events, wishes, declared, question, output)
    if json:
        print_json({"deliveries": done.deliveries, "rejected": done.rejected, "way": done.way})
        return
    typer.echo(f"{done.deliveries:,} deliveries in {output}/deliveries (matched by {done.way})")
    if done.rejected:
        typer.echo(f"{done.rejected:,} events could not be matched: see {output}/rejected_events")


@app.command()
def stream(
    *,
    input: Annotated[  # noqa: A002 - the option's name
        str, typer.Option("--input", help="A folder of event files, an event log.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Live events: mqtt://host:port/TOPICS or nats://host:port/NETWORK.")
    ] = "",
    deliver: Annotated[
        str, typer.Option(help="Publish what a live source delivers: mqtt://host:port/PREFIX.")
    ] = "",
    subscriptions: Annotated[str, typer.Option(help="The directory of subscription changes.")],
    output: Output,
    checkpoint: Annotated[Path, typer.Option(help="Where the stream remembers how far it is.")],
    space: Annotated[str, typer.Option(help="The space that the events belong to.")],
    topic: Annotated[str, typer.Option(help="The topic of the events.")] = "",
    top: Annotated[int | None, typer.Option(min=1, help="Only the k best of each event.")] = None,
    rank: Annotated[str, typer.Option(help="narrowest, nearest, centre or weight.")] = "narrowest",
    config: Annotated[Path, typer.Option(help="Where the space is declared.")] = Path(
        "nearcast.toml"
    ),
    files_a_batch: Annotated[int, typer.Option(min=1, help="Event files per micro-batch.")] = 64,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all that is there is done.")
    ] = False,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Match events as they appear in files or are published, against subscriptions as they change.

    Killed at any moment and started again, it goes on where it was: nothing lost, nothing doubled.
    It says when it listens; what is published after that line is matched.

    Example: nearcast pipeline stream --space shops --input events --subscriptions changes
    --output found --checkpoint state

    Example: nearcast pipeline stream --space shops --source mqtt://localhost:1883/shops/#
    --subscriptions changes --output found --checkpoint state
    """
    from nearcast.matching.ranking import checked_rank
    from nearcast.model.errors import EnvironmentProblem
    from nearcast.pipeline.jobs.match import MatchQuery
    from nearcast.pipeline.sources.input_checks import check_there
    from nearcast.pipeline.spark_errors import told_plainly
    from nearcast.pipeline.streaming.stream import (
        Stream,
        check_event_files,
        start,
        unfinished_batch,
    )

    declared = _space(config, space)
    question = MatchQuery(
        space, topic or _some_topic(declared.topic_filter), top, checked_rank(rank)
    )
    live = _live(config, space, input, source, deliver)
    paths = (Path(input or source), Path(subscriptions), Path(output), checkpoint)
    asked = Stream(*paths, declared, question, files_a_batch)
    if live is None:
        check_event_files(asked)
    check_there(subscriptions)
    spark = started_spark(master, as_json=json)
    with told_plainly(output):
        if live is None:
            query = start(spark, asked, once=once)
            _tell_listening(f"new files in {input}", as_json=json)
            query.awaitTermination()
        else:
            from nearcast.pipeline.streaming.live_stream import start_live

            with start_live(spark, asked, live, once=once) as running:
                _tell_listening(live.source.place, as_json=json)
                running.wait()
    if (batch := unfinished_batch(checkpoint)) is not None:
        raise EnvironmentProblem(
            f"the stream ended in the middle of batch {batch}",
            where=str(checkpoint),
            todo="Start it again: it goes on with that batch",
        )
    if json:
        print_json({"output": output})
    else:
        typer.echo(f"Done: deliveries in {output}/deliveries")


def _tell_listening(place: str, *, as_json: bool) -> None:
    """Print that nothing published from now on is missed."""
    if as_json:
        report_fields({"listening": place})
    else:
        typer.echo(f"Listening to {place}. What is published from now on is matched.", err=True)


def _live(config: Path, space: str, folder: str, source: str, deliver: str) -> Live | None:
    """Return the requested live source, None for files; exactly one must be given."""
    import os

    from nearcast.config import load
    from nearcast.model.errors import MisuseError

    if bool(folder) == bool(source):
        found = "both --input and --source" if folder else "neither --input nor --source"
        raise MisuseError(found, expected="one of them")
    if not source:
        if deliver:
            raise MisuseError("--deliver with --input", expected="--source, a live one")
        return None
    from nearcast.pipeline.streaming.live_stream import live_of

    return live_of(source, _section(config, space), load(config, os.environ).network, deliver)


def _space(config: Path, name: str) -> Space:
    """Return a space of the configuration."""
    return _section(config, name).to_space()


def _section(config: Path, name: str) -> SpaceSection:
    import os

    from nearcast.config import load
    from nearcast.model.errors import UnknownNameError

    sections = {section.name: section for section in load(config, os.environ).space}
    if name not in sections:
        expected = f"one of {', '.join(sections)}" if sections else "a [[space]] there"
        raise UnknownNameError(f"the space {name!r}", where=str(config), expected=expected)
    return sections[name]


def _event_columns(space: Space) -> tuple[str, ...]:
    return ("event_id", "t", "publisher", "topic", *(each.name for each in space.attributes))


def _some_topic(topic_filter: str) -> str:
    """Return a topic that matches a filter, for tables without topics."""
    return topic_filter.replace("+", "x").replace("#", "x")


def _mapping(text: str, wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the mapping 'a=b,c=d' over the column names of a job."""
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


learning.register(app)
auditing.register(app)
