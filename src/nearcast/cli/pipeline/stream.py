"""`nearcast pipeline stream`: the `match` job as a query that never ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.pipeline.termination import termination
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
    from pyspark.sql import SparkSession

    from nearcast.config.schema import SpaceSection
    from nearcast.pipeline.streaming.live_stream import Live
    from nearcast.pipeline.streaming.stream import QueryControl


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
    event_time: Annotated[
        str, typer.Option(help="The column with an event's time; with it, late events are told.")
    ] = "",
    late: Annotated[
        str, typer.Option(help="How much older than the newest an event may be, such as 10m.")
    ] = "10m",
    metrics: Annotated[
        str, typer.Option(help="HOST:PORT where Prometheus reads the stream's metrics.")
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
    from nearcast.model import parse_duration
    from nearcast.model.errors import EnvironmentProblem
    from nearcast.pipeline.sources.input_checks import check_there
    from nearcast.pipeline.spark_errors import spark_errors_translated
    from nearcast.pipeline.streaming.lateness import LateRule
    from nearcast.pipeline.streaming.live_stream import LiveStream, start_live
    from nearcast.pipeline.streaming.stream import (
        QueryControl,
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
    rule = LateRule(event_time, parse_duration(late)) if event_time else None
    asked = Stream(*paths, declared, query, files_a_batch, rule)
    if live is None:
        check_event_files(asked)
    check_there(subscriptions)
    spark = started_spark(master, as_json=json, libraries=_libraries(live, jars))
    control = QueryControl()
    with spark_errors_translated(output), _watched(spark, control, metrics, as_json=json):
        begun: LiveStream
        if live is None:
            begin = partial(start, spark, asked, once=once, control=control)
            begun = LiveStream(begin, None, checkpoint, control)
        else:
            begun = start_live(spark, asked, live, once=once, control=control)
        with begun, termination() as is_over:
            place = live.source.place if live else f"new files in {input}"
            _report_listening(place, as_json=json)
            begun.wait(is_over)
            if is_over():
                begun.stop()
                _report_stopped(checkpoint, as_json=json)
                return
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


@contextmanager
def _watched(
    spark: SparkSession, control: QueryControl, address: str, *, as_json: bool
) -> Iterator[None]:
    """Serve the stream's metrics, and print them every ten seconds, while the body runs."""
    from nearcast.config.values import split_address
    from nearcast.pipeline.streaming.query_metrics import (
        LINE_EVERY_S,
        StreamListener,
        metrics_served,
    )

    def report() -> None:
        said = control.metrics.fields()
        while not over.wait(LINE_EVERY_S):
            now = control.metrics.fields()
            if now != said and as_json:
                report_fields({"progress": now})
            elif now != said:
                typer.echo(control.metrics.line(), err=True)
            said = now

    over = Event()
    reporter = Thread(target=report, daemon=True)
    listener = StreamListener(control.metrics)
    spark.streams.addListener(listener)
    with ExitStack() as stack:
        if address:
            stack.enter_context(
                metrics_served(control.metrics, *split_address(address, "HOST:PORT"))
            )
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join()
            spark.streams.removeListener(listener)


def _report_stopped(checkpoint: Path, *, as_json: bool) -> None:
    """Print that the stream has ended between two batches."""
    if as_json:
        print_json({"stopped": str(checkpoint)})
    else:
        typer.echo("Stopped after a complete batch. Start it again, and it goes on there.")


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
