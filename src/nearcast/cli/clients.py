"""`nearcast pub`, `nearcast sub` and `nearcast status`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.terminal import JSON, print_json

if TYPE_CHECKING:
    from nearcast.mqtt import Properties as PacketProperties
    from nearcast.mqtt import Publish
    from nearcast.server import Target

Host = Annotated[str, typer.Option("--host", "-h", help="The broker's address.")]
Port = Annotated[int, typer.Option("--port", "-p", help="The broker's port.")]
ClientId = Annotated[str, typer.Option("--id", "-i", help="The client identifier.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="The user's name.")]
Password = Annotated[str | None, typer.Option("--password", "-P", help="The password.")]
Qos = Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="Quality of service.")]
Version = Annotated[str, typer.Option("--version", "-V", help="MQTT version: 5 or 3.1.1.")]
CaFile = Annotated[Path | None, typer.Option("--cafile", help="Use TLS; trust this authority.")]
Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic.")]
Topics = Annotated[
    list[str], typer.Option("--topic", "-t", help="A topic filter; may be repeated.")
]


def _target(
    host: str,
    port: int,
    client_id: str,
    user: str | None,
    password: str | None,
    version: str,
    ca_file: Path | None,
) -> Target:
    from nearcast.model.errors import MisuseError
    from nearcast.mqtt import ProtocolVersion
    from nearcast.server import Target

    versions = {"5": ProtocolVersion.V5, "3.1.1": ProtocolVersion.V311}
    if version not in versions:
        raise MisuseError(repr(version), where="--version", expected="5 or 3.1.1")
    return Target(
        host=host,
        port=port,
        version=versions[version],
        client_id=client_id,
        user_name=user,
        password=None if password is None else password.encode(),
        ca_file=ca_file,
    )


Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-D", help="A user property: NAME=VALUE; may be repeated."),
]


def pub(
    *,
    topic: Topic,
    message: Annotated[str | None, typer.Option("--message", "-m", help="The payload.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file whose bytes are the payload.")
    ] = None,
    null: Annotated[
        bool, typer.Option("--null", "-n", help="An empty payload; with -r it ends retaining.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", "-l", help="One message per line of standard input.")
    ] = False,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="Keep it for newcomers.")] = False,
    properties: Properties = None,
    qos: Qos = 0,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    client_id: ClientId = "",
    user: User = None,
    password: Password = None,
    version: Version = "5",
    ca_file: CaFile = None,
) -> None:
    """Publish a message, a file, or each line of standard input.

    Example: nearcast pub -t shops/bakery -m '{"price": 3}' -q 1

    Example: nearcast pub -t shops/bakery -m fresh -D '$lifetime=250ms' -D '$top=3'
    """
    from nearcast.mqtt import Publish
    from nearcast.server import Client

    payloads = _payloads(message, file, null=null, lines=lines)
    extra = _user_properties(properties, version)
    target = _target(host, port, client_id, user, password, version, ca_file)
    with Client(target) as client:
        client.publish(
            Publish(topic, payload, qos=qos, retain=retain, properties=extra)
            for payload in payloads
        )


def _payloads(
    message: str | None, file: Path | None, *, null: bool, lines: bool
) -> Iterable[bytes]:
    """Return what is to be published: exactly one source must be given."""
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


def _user_properties(texts: list[str] | None, version: str) -> PacketProperties:
    from nearcast.model.errors import MisuseError
    from nearcast.mqtt import Properties

    if texts and version != "5":
        raise MisuseError(
            "--property with MQTT 3.1.1",
            expected="MQTT 5",
            todo="Leave --version away, or write prefixes such as $where/… before the topic.",
        )
    pairs = tuple(_pair(text) for text in texts or [])
    return Properties(user_properties=pairs) if pairs else Properties()


def _pair(text: str) -> tuple[str, str]:
    from nearcast.model.errors import MisuseError

    name, equals, value = text.partition("=")
    if not equals:
        raise MisuseError(repr(text), where="--property", expected="NAME=VALUE")
    return name, value


def sub(
    *,
    topic: Topics,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the topic too.")] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-C", help="Stop after so many messages; exit code 1 if fewer come."
        ),
    ] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", "-W", help="Stop after so many seconds.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", "-R", help="Leave out what was retained before.")
    ] = False,
    properties: Properties = None,
    qos: Qos = 0,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    client_id: ClientId = "",
    user: User = None,
    password: Password = None,
    version: Version = "5",
    ca_file: CaFile = None,
    json: bool = JSON,
) -> None:
    """Print messages as they come, until Ctrl-C.

    Example: nearcast sub -t 'shops/#' -v

    Example: nearcast sub -t 'shops/#' -D '$where=price < 100' -D '$near=500m'
    """
    from nearcast.mqtt import FilterRequest
    from nearcast.server import Client

    seen = 0
    target = _target(host, port, client_id, user, password, version, ca_file)
    with Client(target) as client:
        requests = (FilterRequest(each, qos) for each in topic)
        client.subscribe(*requests, properties=_user_properties(properties, version))
        for message in client.messages(wait):
            if live and message.retain:
                continue
            _show(message, verbose=verbose, as_json=json)
            seen += 1
            if seen == count:
                return
    if count is not None:
        raise typer.Exit(1)  # fewer came than were asked for


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


def status(
    *,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    client_id: ClientId = "",
    user: User = None,
    password: Password = None,
    ca_file: CaFile = None,
    json: bool = JSON,
) -> None:
    """Show a running broker's figures: clients, messages, what was dropped ($SYS).

    Example: nearcast status --port 1884
    """
    from nearcast.server import broker_figures

    figures = broker_figures(_target(host, port, client_id, user, password, "5", ca_file))
    if json:
        print_json(figures)
        return
    for name, value in sorted(figures.items()):
        typer.echo(f"{name:45} {value}")
