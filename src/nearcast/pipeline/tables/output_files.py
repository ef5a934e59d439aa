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
def output_folder(output: str) -> Iterator[Path]:
    """Yield a local folder whose files are in `output` when the body is done."""
    if not is_url(output):
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="nearcast-files-") as name:
        yield Path(name)
        store, base = open_store(output)
        store.create_dir(base, recursive=True)
        for file in sorted(Path(name).iterdir()):
            with store.open_output_stream(f"{base}/{file.name}") as stream:
                stream.write(file.read_bytes())


def write_text(output: str, name: str, text: str) -> None:
    """Write a small file of text; a reader sees the old one or the new one."""
    with output_folder(output) as folder:
        partial = folder / f".{name}.part"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
