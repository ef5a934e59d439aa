"""Golden files: how their text is laid out, and how it is compared and read.

Each area of the product has a module here with `FILES`: the name of a file under `files/` and what
makes its text from today's code. `make.py` writes the files, `test_unchanged.py` compares them, and
`test_readable.py` reads them with today's code.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "files"
COMMAND = "python tests/golden/make.py"

Maker = Callable[[], str]
_RUN = re.compile(rb"(.{1,8}?)\1{7,}", re.DOTALL)
_MOST_DIFFERENCES = 40


def difference(name: str, made: str) -> str:
    """Return how a made text differs from the golden file; empty where it does not."""
    path = DIRECTORY / name
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if kept == made:
        return ""
    lines = list(
        difflib.unified_diff(kept.split("\n"), made.split("\n"), "golden", "made", lineterm="", n=1)
    )
    told = [one if len(one) < 400 else one[:400] + " …" for one in lines[:_MOST_DIFFERENCES]]
    return "\n".join([f"{name} is not what the code makes now.", *told, f"If so meant: {COMMAND}"])


# --- bytes as text ------------------------------------------------------------------------------


def as_hex(data: bytes) -> str:
    """Return bytes as hex; eight or more equal units of up to eight bytes as `unit*count`.

    >>> as_hex(b"MQTT" + bytes(40) + b"end")
    '4d515454 00*40 656e64'
    """
    parts: list[str] = []
    at = 0
    for run in _RUN.finditer(data):
        if run.start() > at:
            parts.append(data[at : run.start()].hex())
        unit = run.group(1)
        parts.append(f"{unit.hex()}*{(run.end() - run.start()) // len(unit)}")
        at = run.end()
    if at < len(data):
        parts.append(data[at:].hex())
    return " ".join(parts)


def from_hex(text: str) -> bytes:
    """Return the bytes that `as_hex` wrote.

    >>> from_hex("4d515454 00*3 656e64")
    b'MQTT\\x00\\x00\\x00end'
    """
    parts = (word.partition("*") for word in text.split())
    return b"".join(bytes.fromhex(unit) * int(count or 1) for unit, _, count in parts)


def hex_lines(about: str, records: Mapping[str, bytes]) -> str:
    """Return a file with a comment and one record a line: its name, then its bytes.

    A record that is a JSON file stands there as a text in quotes.
    """
    lines = [f"# {line}" for line in about.splitlines()]
    for name, data in records.items():
        told = json.dumps(data.decode()) if name.endswith(".json") else as_hex(data)
        lines.append(f"{name}: {told}")
    return "\n".join(lines) + "\n"


def read_hex_lines(name: str) -> dict[str, bytes]:
    """Return the records of a golden file that `hex_lines` wrote."""
    lines = (DIRECTORY / name).read_text(encoding="utf-8").splitlines()
    pairs = (one.partition(": ") for one in lines if not one.startswith("#"))
    return {
        name: json.loads(text).encode() if text[:1] == '"' else from_hex(text)
        for name, _, text in pairs
    }


@dataclass(frozen=True, slots=True)
class Codec:
    """Known values and the code that turns them into bytes and back.

    `older` has what earlier versions wrote, with the value that it means today.
    """

    about: str
    values: Mapping[str, Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    older: Mapping[str, tuple[bytes, Any]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the golden file."""
        records = {name: self.encode(value) for name, value in self.values.items()}
        return hex_lines(
            self.about, records | {name: data for name, (data, _) in self.older.items()}
        )

    def meant(self) -> dict[str, Any]:
        """Return what each record of the file means."""
        return {**self.values, **{name: value for name, (_, value) in self.older.items()}}


# --- values without the names of classes and fields ---------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as tuples, numbers and texts, so that a renamed class or field is the same.

    >>> plain(Codec("about", {}, bytes, bytes))[:2]
    ('about', ())
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value):
        return tuple(plain(getattr(value, one.name)) for one in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return tuple((plain(key), plain(one)) for key, one in value.items())
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(plain, value), key=repr))
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def files_below(directory: Path) -> Iterator[Path]:
    """Yield all files below a directory, by name."""
    yield from sorted(path for path in directory.rglob("*") if path.is_file())
