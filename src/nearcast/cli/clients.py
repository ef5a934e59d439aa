"""`nearcast pub`, `nearcast sub` and `nearcast status`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.connecting import Positions, TrackFile, connects
from nearcast.cli.terminal import JSON, print_json, report_fields

if TYPE_CHECKING:
    from nearcast.client.blocking import BlockingClient
    from nearcast.mqtt import Properties as PacketProperties
    from nearcast.mqtt import Publish

Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
Topics = Annotated[
    list[str], typer.Option("--topic", "-t", help="A topic filter; may be repeated.")
]


Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-D", help="A user property: NAME=VALUE; may be repeated."),
]


@connects()
def pub(
    *,
    topic: Topic,
    message: Annotated[str | None, typer.Option("--message", "-m", help="The payload.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file whose bytes are the payload.")
    ] = None,
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-n", help="An empty payload; with -r it deletes the retained message."
        ),
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="One message per line of standard input.")
    ] = False,
    retain: Annotated[
        bool, typer.Option("--retain", "-r", help="Retain the message for new subscribers.")
    ] = False,
    properties: Properties = None,
    position: Positions = None,
    track: TrackFile = None,
    qos: Qos = 0,
    target: Any,
    json: bool = JSON,
) -> None:
    """Publish a message, a file, or each line of standard input.

    Remarks of the broker about a message (at QoS 1 and 2) are printed to standard error.

    Example: nearcast pub -t shops/bakery -m '{"price": 3, "lon": 2.35, "lat": 48.85}' -q 1

    Example: nearcast pub -t shops/bakery -m '{"price": 3}' -D '$lifetime=250ms' -D '$top=3'
    """
    from nearcast.cli.connecting import position_messages, read_track
    from nearcast.client.blocking import BlockingClient
    from nearcast.mqtt import Publish

    payloads = _payloads(message, file, null=null, lines=lines)
    extra = _user_properties(properties, target.version)
    places = [each for _, each in position_messages(read_track(position, track))]
    with BlockingClient(target) as client:
        client.publish(places)
        count = client.publish(
            Publish(topic, payload, qos=qos, retain=retain, properties=extra)
            for payload in payloads
        )
    if json:
        print_json({"published": count, "notes": client.notes})
    else:
        _print_notes(client.notes)


def _payloads(
    message: str | None, file: Path | None, *, null: bool, lines: bool
) -> Iterable[bytes]:
    """Return the payloads to publish: exactly one source must be given."""
    from nearcast.model.errors import EnvironmentProblem, MisuseError

    given = [message is not None, file is not None, null, lines]
    if sum(given) != 1:
        raise MisuseError(
            "several" if any(given) else "no message",
            expected="one of --message, --file, --null and --lines",
        )
    if file is not None:
        try:
            return [file.read_bytes()]
        except OSError as problem:
            raise EnvironmentProblem(str(problem.strerror), where=str(file)) from None
    if lines:
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    return [(message or "").encode()]


def _user_properties(texts: list[str] | None, version: int) -> PacketProperties:
    from nearcast.model.errors import MisuseError
    from nearcast.mqtt import Properties

    if texts and version < 5:
        raise MisuseError(
            "--property with MQTT 3.1.1",
            expected="MQTT 5",
            todo="Leave out --version, or write prefixes such as $where/… before the topic.",
        )
    pairs = tuple(pair_of(text) for text in texts or [])
    return Properties(user_properties=pairs) if pairs else Properties()


def pair_of(text: str) -> tuple[str, str]:
    """Return the user property of NAME=VALUE."""
    from nearcast.model.errors import MisuseError

    name, equals, value = text.partition("=")
    if not equals:
        raise MisuseError(repr(text), where="--property", expected="NAME=VALUE")
    return name, value


@connects()
def sub(
    *,
    topic: Topics,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the topic too.")] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-C", help="Stop after this many messages; exit code 1 if fewer arrive."
        ),
    ] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", "-W", help="Stop after this many seconds.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", "-R", help="Leave out messages that were retained before.")
    ] = False,
    properties: Properties = None,
    position: Positions = None,
    track: TrackFile = None,
    qos: Qos = 0,
    target: Any,
    json: bool = JSON,
) -> None:
    """Print messages as they arrive, until Ctrl-C.

    Prints a line to standard error once the broker has accepted the subscription, and the broker's
    remarks.

    Example: nearcast sub -t 'shops/#' -v

    Example: nearcast sub -t 'shops/#' -D '$where=price < 100' -D '$near=500m' --position 2.35,48.85

    Example: nearcast sub -t 'shops/#' -q 1 --id bob --session 1h
    """
    from nearcast.cli.connecting import position_messages, read_track
    from nearcast.client.blocking import BlockingClient
    from nearcast.mqtt import FilterRequest

    extra = _user_properties(properties, target.version)
    places = position_messages(read_track(position, track))
    seen = 0
    with BlockingClient(target) as client:
        client.publish(each for after_s, each in places if not after_s)
        granted = client.subscribe(*(FilterRequest(each, qos) for each in topic), properties=extra)
        _report_subscribed(client, dict(zip(topic, granted, strict=True)), as_json=json)
        later = [one for one in places if one[0]]
        for message in client.messages(wait, later):
            if live and message.retain:
                continue
            _show(message, verbose=verbose, as_json=json)
            seen += 1
            if seen == count:
                return
    if count is not None:
        raise typer.Exit(1)  # fewer arrived than requested


def _report_subscribed(client: BlockingClient, granted: dict[str, int], *, as_json: bool) -> None:
    """Print to standard error that the subscription is in force, and the broker's remarks."""
    connack = client.conversation.connack
    resumed = connack is not None and connack.session_present
    if as_json:
        report_fields({"subscribed": granted, "resumed": resumed, "notes": client.notes})
        return
    told = ", ".join(f"{topic} at QoS {qos}" for topic, qos in granted.items())
    typer.echo(f"Subscribed to {told}" + ("; the session was resumed" if resumed else ""), err=True)
    _print_notes(client.notes)


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def _show(message: Publish, *, verbose: bool, as_json: bool) -> None:
    import json

    text = message.payload.decode(errors="replace")
    if as_json:
        fields = {
            "topic": message.topic,
            "payload": text,
            "qos": message.qos,
            "retain": message.retain,
            "properties": [list(pair) for pair in message.properties.user_properties],
        }
        text = json.dumps(fields, ensure_ascii=False)
    elif verbose:
        text = f"{message.topic} {text}"
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@connects("version", "session")
def status(
    *,
    target: Any,
    json: bool = JSON,
) -> None:
    """Show the metrics of a running broker: clients, messages, drops ($SYS).

    Example: nearcast status --port 1884
    """
    from nearcast.client.blocking import broker_figures

    figures = broker_figures(target)
    if json:
        print_json(figures)
        return
    for name, value in sorted(figures.items()):
        typer.echo(f"{name:45} {value}")
