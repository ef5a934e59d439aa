"""`nearcast pipeline stream`: the `match` job as a query that never ends."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.spark import (
    ConfigFile,
    Master,
    Rank,
    SpaceName,
    Top,
    TopicOfEvents,
    match_query,
    space_section,
    started_spark,
)
from nearcast.cli.terminal import JSON, print_json, report_fields

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection
    from nearcast.pipeline.streaming.live_stream import Live


def stream(
    *,
    input: Annotated[  # noqa: A002 - the option's name
        str, typer.Option("--input", help="A folder of event files, or an event log.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="Live events: mqtt://host:port/TOPICS, nats://host:port/NETWORK or "
            "kafka://host:port/TOPIC."
        ),
    ] = "",
    deliver: Annotated[
        str,
        typer.Option(
            help="Publish what a live source delivers: mqtt://host:port/PREFIX or "
            "kafka://host:port/TOPIC."
        ),
    ] = "",
    subscriptions: Annotated[str, typer.Option(help="The directory of subscription changes.")],
    output: Annotated[str, typer.Option("--output", help="The directory for the job's tables.")],
    checkpoint: Annotated[Path, typer.Option(help="The directory for the stream's progress.")],
    space: SpaceName,
    topic: TopicOfEvents = "",
    top: Top = None,
    rank: Rank = "narrowest",
    config: ConfigFile = Path("nearcast.toml"),
    files_a_batch: Annotated[int, typer.Option(min=1, help="Event files per micro-batch.")] = 64,
    most: Annotated[int, typer.Option(min=1, help="Live events per micro-batch.")] = 200_000,
    jars: Annotated[
        str,
        typer.Option(help="Jars for Spark, such as Kafka's connector; else it comes from Maven."),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all existing events are matched.")
    ] = False,
    master: Master = "local[*]",
    json: bool = JSON,
) -> None:
    """Match events as they arrive, in files or by MQTT, with subscriptions as they change.

    After a crash it resumes from the checkpoint: no delivery is lost, none is written twice.
    It prints a line when it listens; events published after that line are matched.

    Example: nearcast pipeline stream --space shops --input events --subscriptions changes
    --output found --checkpoint state

    Example: nearcast pipeline stream --space shops --source mqtt://localhost:1883/shops/#
    --subscriptions changes --output found --checkpoint state
    """
    from nearcast.model.errors import EnvironmentProblem
    from nearcast.pipeline.sources.input_checks import check_there
    from nearcast.pipeline.spark_errors import spark_errors_translated
    from nearcast.pipeline.streaming.stream import (
        Stream,
        check_event_files,
        start,
        unfinished_batch,
    )

    section = space_section(config, space)
    declared = section.to_space()
    query = match_query(declared, topic, top, rank)
    live = _live(config, section, input, source, deliver, most)
    paths = (Path(input or source), Path(subscriptions), Path(output), checkpoint)
    asked = Stream(*paths, declared, query, files_a_batch)
    if live is None:
        check_event_files(asked)
    check_there(subscriptions)
    spark = started_spark(master, as_json=json, libraries=_libraries(live, jars))
    with spark_errors_translated(output):
        if live is None:
            running = start(spark, asked, once=once)
            _report_listening(f"new files in {input}", as_json=json)
            running.awaitTermination()
        else:
            from nearcast.pipeline.streaming.live_stream import start_live

            with start_live(spark, asked, live, once=once) as live_stream:
                _report_listening(live.source.place, as_json=json)
                live_stream.wait()
    if (batch := unfinished_batch(checkpoint)) is not None:
        raise EnvironmentProblem(
            f"the stream ended in the middle of batch {batch}",
            where=str(checkpoint),
            todo="Start it again: it resumes with that batch",
        )
    if json:
        print_json({"output": output})
    else:
        typer.echo(f"Done: deliveries in {output}/deliveries")


def _report_listening(place: str, *, as_json: bool) -> None:
    """Print that no event published from now on is missed."""
    if as_json:
        report_fields({"listening": place})
    else:
        typer.echo(f"Listening to {place}. Events published from now on are matched.", err=True)


def _libraries(live: Live | None, jars: str) -> dict[str, str]:
    """Return the settings with which Spark finds what the stream needs beside itself."""
    if jars:
        return {"spark.jars": jars}
    if live is None or not live.uses_kafka:
        return {}
    from nearcast.pipeline.streaming.kafka import CONNECTOR

    return {"spark.jars.packages": ",".join(CONNECTOR)}


def _live(
    config: Path, section: SpaceSection, folder: str, source: str, deliver: str, most: int
) -> Live | None:
    """Return the requested live source, None for files; exactly one must be given."""
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

    network = load(config, os.environ).network
    return replace(live_of(source, section, network, deliver), most=most)
