"""The options for the broker that a command connects to, and for the credentials."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Host = Annotated[str, typer.Option("--host", "-H", help="The broker's address.")]
Port = Annotated[int, typer.Option("--port", "-p", help="The broker's port.")]
ClientId = Annotated[str, typer.Option("--id", "-i", help="The client identifier.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="The user's name.")]
Password = Annotated[str | None, typer.Option("--password", "-P", help="The password.")]
Version = Annotated[str, typer.Option("--version", "-V", help="MQTT version: 5 or 3.1.1.")]
CaFile = Annotated[Path | None, typer.Option("--cafile", help="Use TLS; trust this authority.")]
Certificate = Annotated[
    Path | None, typer.Option("--cert", help="Use TLS; present this certificate to the broker.")
]
Key = Annotated[
    Path | None, typer.Option("--key", help="The certificate's key, if it is in another file.")
]
SessionTime = Annotated[
    str,
    typer.Option(
        "--session",
        metavar="TIME",
        help="Resume the session, and keep it at the broker for this long (1h); needs --id.",
    ),
]


def connects(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `target` by the options above.

    The command gets the BrokerAddress of the options; those in `left_out` have their defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        known = inspect.signature(broker_address, eval_str=True).parameters.values()
        options = [option for option in known if option.name not in left_out]
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += options if parameter.name == "target" else [parameter]

        def run(**given: Any) -> None:
            chosen = {option.name: given.pop(option.name) for option in options}
            command(target=broker_address(**chosen), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def broker_address(
    *,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    client_id: ClientId = "",
    user: User = None,
    password: Password = None,
    version: Version = "5",
    ca_file: CaFile = None,
    certificate: Certificate = None,
    key: Key = None,
    session: SessionTime = "",
) -> Any:
    """Return the BrokerAddress of the options, or raise MisuseError."""
    from nearcast.client.blocking import BrokerAddress
    from nearcast.model.errors import MisuseError
    from nearcast.mqtt import ProtocolVersion

    versions = {"5": ProtocolVersion.V5, "3.1.1": ProtocolVersion.V311}
    if version not in versions:
        raise MisuseError(repr(version), where="--version", expected="5 or 3.1.1")
    if key is not None and certificate is None:
        raise MisuseError("--key without --cert", expected="both")
    return BrokerAddress(
        host=host,
        port=port,
        version=versions[version],
        client_id=client_id,
        user_name=user,
        password=None if password is None else password.encode(),
        clean_start=not session,
        session_expiry_s=_session_seconds(session, client_id),
        ca_file=ca_file,
        certificate=certificate,
        key=key,
    )


def _session_seconds(session: str, client_id: str) -> int:
    from nearcast.model import parse_duration
    from nearcast.model.errors import MisuseError

    if not session:
        return 0
    if not client_id:
        raise MisuseError(
            "--session without --id",
            expected="both",
            todo="A session is found by its client identifier.",
        )
    try:
        return max(1, round(parse_duration(session)))
    except MisuseError as problem:
        problem.where = "--session"
        raise
