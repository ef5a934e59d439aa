"""`nearcast keys new` and `nearcast keys show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.terminal import JSON, print_json

app = typer.Typer(
    help="Make the keys that nodes and operators of a cluster prove themselves with.",
    no_args_is_help=True,
)
KeyFile = Annotated[Path, typer.Argument(help="The file of the private key.")]


@app.command()
def new(
    path: KeyFile,
    *,
    node: Annotated[str | None, typer.Option("--node", help="The node whose key it is.")] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", help="The operator whose key it is.")
    ] = None,
    json: bool = JSON,
) -> None:
    r"""Write a private key, and print the line of its public key.

    Collect the lines of all nodes and operators in one file, the same at all nodes, and name both
    files in the configuration: \[network] node_key = "berlin.key", node_keys = "keys.txt". An
    operator does the same for the commands that change a cluster.

    Example: nearcast keys new berlin.key --node berlin

    Example: nearcast keys new alice.key --operator alice
    """
    from nearcast.model.errors import MisuseError
    from nearcast.server.cluster.cluster_keys import Signer, new_key, signer_of

    if (node is None) == (operator is None):
        raise MisuseError("both or neither", expected="one of --node and --operator")
    signer = Signer("node", node) if node is not None else Signer("operator", operator or "")
    try:
        signer_of(str(signer))
    except ValueError as problem:
        raise MisuseError(str(problem)) from None
    _print(new_key(path, signer), as_json=json)


@app.command()
def show(path: KeyFile, *, json: bool = JSON) -> None:
    """Print the line of a private key's public key.

    Example: nearcast keys show berlin.key
    """
    from nearcast.server.cluster.cluster_keys import public_line

    _print(public_line(path), as_json=json)


def _print(line: str, *, as_json: bool) -> None:
    if as_json:
        kind, name, key = line.split(" ")
        print_json({"kind": kind, "name": name, "key": key})
    else:
        typer.echo(line)
