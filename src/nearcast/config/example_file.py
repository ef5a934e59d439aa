"""The file that `nearcast init` writes: every key with its default and its help text."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

from nearcast.config.declaration import Section, Setting, inner_section, settings_of
from nearcast.config.schema import Configuration
from nearcast.config.values import written

_HEAD = """\
# Nearcast, with every setting at its default, and a space as an example. A setting behind # is
# not in force. The environment overrides any setting, with __ between levels:
#   NEARCAST_LIMITS__CONNECTIONS=50000    NEARCAST_LISTENER__0__PORT=1884
"""
_WIDTH = 98
_HELP_COLUMN = 30


def example(whole: type[Section] = Configuration) -> str:
    """Return a commented `nearcast.toml` with every key that a configuration may have."""
    lines = [_HEAD.rstrip()]
    for name, field in whole.model_fields.items():
        section, mark = inner_section(field)
        assert section is not None
        is_default = bool(field.get_default(call_default_factory=True))
        is_on = is_default or any(one.is_active for one in settings_of(section))
        lines += _block(name, section, mark, is_on=is_on)
    return "\n".join(lines) + "\n"


def _block(path: str, section: type[Section], mark: str, *, is_on: bool) -> Iterator[str]:
    """Yield the lines of a section: what it is, its header, its keys, the sections within it."""
    yield ""
    yield from about(section)
    off = "" if is_on else "# "
    yield f"{off}[[{path}]]" if mark == "[]." else f"{off}[{path}]"
    inner: list[str] = []
    for one in settings_of(section):
        below, mark_below = inner_section(one.field)
        if below is None:
            yield _line(one, is_on=is_on)
        elif mark_below == ".NAME.":  # the user chooses the keys
            keys = ", ".join(f"{each.key} ({each.help})" for each in settings_of(below))
            inner += ["", *about(below), *_comment(f"Its keys: {keys}.")]
            inner += [f"{off}[{path}.{one.key}]", *one.example.splitlines()]
        else:
            is_below_on = is_on and bool(one.field.default)
            inner += _block(f"{path}.{one.key}", below, mark_below, is_on=is_below_on)
    yield from inner


def _line(one: Setting, *, is_on: bool) -> str:
    value = one.example or written(one.field.default, one.field)
    is_on = is_on and (not one.example or one.is_active or one.field.is_required())
    text = f"{'' if is_on else '# '}{one.key} = {value}"
    return f"{text:<{_HELP_COLUMN - 1}} # {one.help.replace('`', '')}"


def about(section: type[Section]) -> Iterator[str]:
    """Yield what a section is, as comments."""
    for paragraph in (inspect.getdoc(section) or "").split("\n\n"):
        yield from _comment(paragraph)


def _comment(text: str) -> list[str]:
    words = text.replace("`", "").replace("\n", " ")
    return [f"# {line}" for line in textwrap.wrap(words, _WIDTH, break_on_hyphens=False)]
