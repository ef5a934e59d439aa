"""The subscriptions of a stream: change files, folded once.

    changes/000.parquet, 001.parquet, …  ──► checkpoint/subscriptions.parquet: what they come to
                         002.parquet     ──► only this is read when it appears

The last row about a subscription counts, in the order of the files' names. The folded table names
the files in it, so a file that is replaced, or that appears between them later, is noticed: then
all are read again. Files that are folded may be removed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nearcast.eventlog.log_files import is_event_log
from nearcast.model import FileFormatError, MisuseError, Space
from nearcast.pipeline.sources.log_subscriptions import log_version
from nearcast.pipeline.sources.subscription_tables import KEY, subscription_columns

OPERATION = "op"  # of a change: put or remove
_FILES = b"nearcast files"
_STAMP = "@"
Files = dict[str, list[int]]  # name: size and time of the last change


def newest_change(changes: Path) -> str:
    """Return the version of the subscriptions: it changes when a change file does.

    It begins with the name of the last change file; for an event log it is that of the log.
    """
    if is_event_log(str(changes)):
        return log_version(changes)
    found = _files(changes)
    if not found:
        raise MisuseError(
            "no subscriptions", where=str(changes), expected="one Parquet file at least"
        )
    stamp = zlib.crc32(json.dumps(found).encode())
    return f"{max(found)}{_STAMP}{stamp:08x}"


def subscriptions_at(
    changes: Path, version: str, space: Space, folded: Path | None = None
) -> pa.Table:
    """Return the subscriptions after all change files up to a version.

    With `folded`, a path, only files that are not in the table there are read, and it is renewed.
    """
    last = version.partition(_STAMP)[0]
    files = {name: stamp for name, stamp in _files(changes).items() if name <= last}
    known, names = _folded(folded, files, last)
    folder = changes.parent if changes.is_file() else changes
    new = [folder / name for name in sorted(files) if name not in names]
    table = _fold(known, new, space, str(changes))
    if folded is not None and new:
        _keep(table, names | files, folded)
    return table


def _files(changes: Path) -> Files:
    """Return the change files in the order of their names."""
    paths = [changes] if changes.is_file() else sorted(changes.glob("*.parquet"))
    found: Files = {}
    for path in paths:
        try:
            state = path.stat()
        except FileNotFoundError:  # removed since it was listed
            continue
        found[path.name] = [state.st_size, state.st_mtime_ns]
    return found


def _fold(known: pa.Table | None, files: Sequence[Path], space: Space, where: str) -> pa.Table:
    try:
        tables = [pq.read_table(file) for file in files]
        table = pa.concat_tables(
            tables if known is None else [known, *tables], promote_options="default"
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise FileFormatError(f"a change file cannot be read ({error})", where=where) from None
    present = table.column_names
    columns = subscription_columns(space, present, where)
    keys = table[KEY].to_numpy()
    _, last = np.unique(keys[::-1], return_index=True)
    table = table.take(pa.array(np.sort(len(keys) - 1 - last)))
    if OPERATION in present:
        is_put = pa.compute.not_equal(pa.compute.fill_null(table[OPERATION], "put"), "remove")
        table = table.filter(is_put)
    return table.select(columns).sort_by(KEY)


def _folded(path: Path | None, files: Files, last: str) -> tuple[pa.Table | None, Files]:
    """Return the folded table and the files in it; nothing where it does not fit the files."""
    if path is None or not path.exists():
        return None, {}
    try:
        table = pq.read_table(path)
        names: Files = json.loads((table.schema.metadata or {})[_FILES])
    except (pa.ArrowInvalid, OSError, ValueError, KeyError):
        return None, {}
    if not names or max(names) > last:
        return None, {}
    changed = [
        name for name, stamp in files.items() if name <= max(names) and names.get(name) != stamp
    ]
    if not changed:
        return table.replace_schema_metadata(None), names
    gone = sorted(names.keys() - files.keys())
    if gone:
        raise FileFormatError(
            f"{changed[0]} was added or changed after {gone[0]}, which is not there any more, was "
            "read",
            where=str(path),
            todo="Put changes into files with later names, or start with an empty checkpoint.",
        )
    return None, {}


def _keep(table: pa.Table, files: Files, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        pq.write_table(table.replace_schema_metadata({_FILES: json.dumps(files)}), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
