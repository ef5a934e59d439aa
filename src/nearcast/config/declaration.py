"""What is declared of a setting, once: default, help text, whether a reload applies it, its use.

A section of `nearcast.toml` declares its keys with `setting`. All else comes from there: the checks
(Pydantic), the example file, the list of keys that a reload applies, the fields of the broker's
settings, the reference page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


def setting(
    default: Any,
    help_text: str,
    *,
    reload: bool | str = False,
    fills: str | tuple[str, ...] = (),
    example: str = "",
    is_active: bool = False,
    **bounds: Any,
) -> Any:
    """Return the declaration of a key; `...` as default means that the key is required.

    `reload` says whether SIGHUP applies a change, or in words which change. `fills` names the
    field of the broker's settings (`server/broker_settings.py`). `example` is a value in TOML for
    the example file, where the default says too little; it is a comment there unless `is_active`.
    `bounds` are Pydantic's.
    """
    return Field(
        default,
        description=help_text,
        json_schema_extra={
            "reload": reload,
            "fills": [fills] if isinstance(fills, str) else list(fills),
            "example": example,
            "is_active": is_active,
        },
        **bounds,
    )


class Section(BaseModel):
    """One section: unknown keys are errors, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key as it was declared; `path` is such as `limits.queue` or `listener[].port`."""

    path: str
    field: FieldInfo
    help: str
    reload: bool | str
    fills: tuple[str, ...]
    example: str
    is_active: bool

    @property
    def key(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


def settings_of(section: type[Section], prefix: str = "") -> Iterator[Setting]:
    """Yield the keys of a section in order, without those of the sections within it."""
    for name, field in section.model_fields.items():
        declared = field.json_schema_extra
        if isinstance(declared, dict):
            parts: dict[str, Any] = {**declared, "fills": tuple(declared["fills"])}  # type: ignore[arg-type]
            yield Setting(f"{prefix}{name}", field, field.description or "", **parts)


def inner_section(field: FieldInfo) -> tuple[type[Section] | None, str]:
    """Return the section in a field, if any, and what its path adds: `.`, `[].` or `.NAME.`."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind, "."
    found = [one for one in get_args(kind) if isinstance(one, type) and issubclass(one, Section)]
    return (found[0], "[]." if len(get_args(kind)) == 1 else ".NAME.") if found else (None, "")


def sections_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Yield a section and all sections within it, each with the prefix of its keys."""
    yield prefix, section
    for name, field in section.model_fields.items():
        inner, mark = inner_section(field)
        if inner is not None:
            yield from sections_of(inner, f"{prefix}{name}{mark}")


def all_settings(section: type[Section]) -> Iterator[Setting]:
    """Yield the keys of a section and of all sections within it."""
    for prefix, one in sections_of(section):
        yield from settings_of(one, prefix)
