"""The command line: commands, options and exit codes, from the tree that Typer makes."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer
from tests.golden.golden import Maker

import nearcast.cli
from nearcast.cli.terminal import as_fields, exit_code
from nearcast.model import errors


def commands(command: Any, path: str) -> Iterator[str]:
    """Yield a command with its options and arguments, and those below it."""
    yield f"{path}{' (hidden)' if command.hidden else ''}"
    for one in command.params:
        yield f"  {_parameter(one)}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def _parameter(one: Any) -> str:
    names = "/".join([*one.opts, *one.secondary_opts])
    default = one.default() if callable(one.default) else one.default
    told = [f"{one.param_type_name} {names}: {_kind(one.type_descriptor.annotation)}"]
    told += [f"default {default}", f"from {one.min} to {one.max}".removeprefix("from None to None")]
    told += [f"environment {one.envvar}"] if one.envvar else []
    marks = ("required", "multiple", "is_flag", "count", "hidden", "is_eager")
    told += [mark for mark in marks if getattr(one, mark, False)]
    told += [f"{one.nargs} values"] if one.nargs != 1 else []
    return ", ".join(filter(None, told))


def _kind(annotation: Any) -> str:
    """Return a type as users see it: an enumeration is its values."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "|".join(str(one.value) for one in annotation)
    inner = [_kind(one) for one in get_args(annotation)]
    name = getattr(annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(inner)}]" if inner else name


def tree() -> str:
    """Return all commands."""
    return "\n".join(commands(typer.main.get_command(nearcast.cli.app), "nearcast")) + "\n"


def exit_codes() -> str:
    """Return what scripts see of errors: names in JSON, exit codes, and the other keys."""
    kinds = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.NearcastError)
    ]
    lines = [f"{kind.__name__}: {exit_code(kind.__new__(kind))}" for kind in kinds]
    codes = {"usage": nearcast.cli.USAGE, "bug": nearcast.cli.BUG, "^C": nearcast.cli.INTERRUPTED}
    error = errors.MisuseError("found", where="where", expected="expected", todo="todo")
    lines += [
        *(f"{name}: {code}" for name, code in codes.items()),
        f"keys: {list(as_fields(error))}",
    ]
    return "\n".join(lines) + "\n"


FILES: dict[str, Maker] = {"commands/tree.txt": tree, "commands/exit-codes.txt": exit_codes}
