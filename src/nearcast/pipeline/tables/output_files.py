"""Files beside tables, such as maps, pictures and plans, on any file system.

Libraries that draw and write need a local file. For a URL they write into a private folder, and its
files are sent when all are written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nearcast.eventlog.stores import is_url, open_store


@contextmanager
def output_folder(output: str, *names: str) -> Iterator[Path]:
    """Yield a local folder whose files are in `output` when the body is done.

    Files with these names that are there already are in the folder from the beginning.
    """
    if not is_url(output):
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="nearcast-files-") as name:
        for wanted in names:
            fetch(f"{output}/{wanted}", Path(name) / wanted)
        yield Path(name)
        store, base = open_store(output)
        store.create_dir(base, recursive=True)
        for file in sorted(Path(name).iterdir()):
            with store.open_output_stream(f"{base}/{file.name}") as stream:
                stream.write(file.read_bytes())


def fetch(source: str, target: Path) -> bool:
    """Copy a file to the local disk; return whether it was there."""
    store, path = open_store(source)
    if not store.get_file_info(path).is_file:
        return False
    with store.open_input_stream(path) as stream:
        target.write_bytes(stream.read())
    return True


@contextmanager
def local_file(path: str) -> Iterator[Path]:
    """Yield a local path with the content of a file; nothing is there if it does not exist."""
    if not is_url(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="nearcast-files-") as name:
        target = Path(name) / path.rsplit("/", maxsplit=1)[-1]
        fetch(path, target)
        yield target


def write_text(output: str, name: str, text: str) -> None:
    """Write a small file of text; a reader sees the old one or the new one."""
    with output_folder(output) as folder:
        partial = folder / f".{name}.part"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
