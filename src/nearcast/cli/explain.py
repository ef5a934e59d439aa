"""`nearcast explain`: why a client gets, or does not get, a message."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.clients import pair_of
from nearcast.cli.connecting import connects
from nearcast.cli.terminal import JSON, os_errors_translated, print_json

if TYPE_CHECKING:
    from nearcast.client.blocking import BrokerAddress

EXPLAIN_TOPIC = "$nearcast/explain"
_MARKS = {True: "yes", False: "NO ", None: " ? "}
_WAIT_S = 10.0


@connects("version", "session")
def explain(
    client: Annotated[str, typer.Argument(help="The client identifier of the receiver.")],
    *,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="The topic.")] = None,
    message: Annotated[str, typer.Option("--message", "-m", help="The payload.")] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-D", help="A user property of the message: NAME=VALUE."),
    ] = None,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="The message's QoS.")] = 0,
    publisher: Annotated[
        str | None,
        typer.Option(help="The client that publishes it, to check the rules for publishing too."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="Read this event log directory instead of asking a broker; may be given several "
            "times, for the nodes of a cluster."
        ),
    ] = None,
    event: Annotated[
        int | None, typer.Option(help="The event's number in the log; default: the topic's last.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The file that declares the spaces, for --log.")
    ] = None,
    target: Any,
    json: bool = JSON,
) -> None:
    """Show step by step why a client gets, or does not get, a message.

    Asks a running broker what it would do with a message now; nothing is sent to clients. With
    --log, reads from the event log what happened to a message; in causal order also whom it waited
    for and how long, or why it was discarded. The exit code is 0 if the client gets it, 1 if not.

    Example: nearcast explain bob -t shops/bakery -m '{"price": 3, "lon": 2.35, "lat": 48.85}'

    Example: nearcast explain bob --log nearcast-data/eventlog -t shops/bakery
    """
    from nearcast.model.errors import MisuseError

    if log:
        found = _from_log(log, config, client, topic, event)
    elif topic is None:
        raise MisuseError("no topic", expected="--topic, or --log with --event")
    else:
        question: dict[str, Any] = {"client": client, "topic": topic, "payload": message}
        question |= {"properties": [list(pair_of(each)) for each in properties or []], "qos": qos}
        if publisher is not None:
            question["publisher"] = publisher
        found = ask_broker(target, question)
    if json:
        print_json(found)
    else:
        _print(found)
    raise typer.Exit(0 if found["delivered"] else 1)


def ask_broker(target: BrokerAddress, question: dict[str, Any]) -> dict[str, Any]:
    """Ask over MQTT and return the answer."""
    import json
    import secrets

    from nearcast.client.blocking import BlockingClient
    from nearcast.model.errors import MisuseError, PeerProtocolError
    from nearcast.mqtt import FilterRequest, Properties, Publish

    answers = f"nearcast/explain/{secrets.token_hex(8)}"
    with BlockingClient(target) as client:
        client.subscribe(FilterRequest(answers, 1))
        asking = Properties(response_topic=answers)
        payload = json.dumps(question).encode()
        client.publish([Publish(EXPLAIN_TOPIC, payload, qos=1, properties=asking)])
        answer = next((m.payload for m in client.messages(_WAIT_S) if m.topic == answers), None)
    if answer is None:
        raise PeerProtocolError(
            f"no answer to {EXPLAIN_TOPIC}", todo="Is it a Nearcast broker, of this version?"
        )
    found: dict[str, Any] = json.loads(answer)
    if "problem" in found:
        raise MisuseError(found["problem"])
    return found


def _from_log(
    logs: list[Path], config: Path | None, client: str, topic: str | None, event: int | None
) -> dict[str, Any]:
    from nearcast.cli.explain_log import explain_from_log, find_event, opened
    from nearcast.config import load
    from nearcast.model.errors import MisuseError

    if topic is None and event is None:
        raise MisuseError("no message", expected="--event or --topic")
    default = Path("nearcast.toml")
    path = config or (default if default.exists() else None)
    with os_errors_translated(), opened(*logs) as folder:
        row = find_event(folder, event, topic)
        return asdict(explain_from_log(folder, load(path, os.environ), client, row))


def _print(found: dict[str, Any]) -> None:
    event = found.get("event")
    if event is not None:
        number, payload = event["sequence"], _cut(event["payload"])
        typer.echo(f"event {number}, {event['t']}, {found['topic']}  {payload}")
    for step in found["steps"]:
        typer.echo(f"  {_MARKS[step['ok']]}  {step['step']:<10}  {step['detail']}")
    verb = "gets it" if found["delivered"] else "does not get it"
    typer.secho(f"{found['client']} {verb}: {found['because']}", bold=True)


def _cut(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[:most] + "…"
