"""A table's pointer moves only to what is complete."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearcast.eventlog import VersionedTable
from nearcast.model.errors import FileFormatError, KeyInUseError, MisuseError


def write(table: VersionedTable, suffix: str, value: int) -> str:
    version = table.begin(suffix)
    Path(table.path_of(version)).mkdir(parents=True)
    pq.write_table(pa.table({"x": [value]}), f"{table.path_of(version)}/part-0.parquet")
    return version


def test_a_new_table_has_no_version_and_says_what_to_do(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    assert table.current() is None
    with pytest.raises(MisuseError, match="no finished table"):
        table.current_path()


def test_what_is_written_but_not_published_is_not_read(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    table.publish(write(table, "a", 1), rows=1)
    write(table, "b", 2)
    assert pq.read_table(table.current_path())["x"].to_pylist() == [1]


def test_publishing_moves_the_pointer_and_old_versions_go(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    for value in range(5):
        table.publish(write(table, f"{value}", value))
        table.drop_old()
    assert pq.read_table(table.current_path())["x"].to_pylist() == [4]
    names = sorted(path.name for path in (tmp_path / "t").iterdir())
    assert names == ["000004-3", "000005-4", "CURRENT"]


def test_dropping_spares_a_version_that_is_being_written(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    table.publish(write(table, "a", 1))
    unfinished = write(table, "b", 2)
    table.drop_old()
    assert Path(table.path_of(unfinished)).exists()


WRITES_AND_DIES = """
import os, signal, sys
from nearcast.eventlog import VersionedTable
table = VersionedTable(sys.argv[1])
os.mkdir(table.path_of(table.begin("dead")))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_never_kept_in_place_of_a_version(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    for value in (1, 2):
        table.publish(write(table, f"{value}", value))
    subprocess.run([sys.executable, "-c", WRITES_AND_DIES, table.root], check=False)
    (draft,) = (tmp_path / "t").glob("0*-dead")
    table.publish(write(table, "3", 3))
    assert table.drop_old() == ["000001-1", draft.name]
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "000002-2", "000003-3", "CURRENT",
    ]  # fmt: skip


def test_a_draft_of_another_machine_is_removed_when_it_is_old(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    table.publish(write(table, "a", 1))
    elsewhere = write(table, "b", 2)
    mark = tmp_path / "t" / f".draft-{elsewhere}"
    mark.write_text(json.dumps({"host": "elsewhere", "boot": "", "pid": 1, "started": 1}))
    assert table.drop_old(datetime.now(UTC) + timedelta(days=1)) == []
    assert table.drop_old(datetime.now(UTC) + timedelta(days=8)) == [elsewhere]


def test_a_version_made_from_an_older_one_is_refused(tmp_path: Path):
    table = VersionedTable(str(tmp_path / "t"))
    first, late = write(table, "a", 1), write(table, "b", 2)
    table.publish(first, after="")
    with pytest.raises(KeyInUseError, match="run this one again"):
        table.publish(late, after="")
    assert table.current_path().endswith(first)
    table.publish(late, after=first)
    assert table.current_path().endswith(late)


PUBLISHES_MANY = """
import json, sys
from pathlib import Path
from nearcast.eventlog import VersionedTable

root, writer, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
table, pairs = VersionedTable(root), []
for number in range(times):
    version = table.begin(f"{writer}x{number}")
    folder = Path(table.path_of(version))
    folder.mkdir()
    (folder / "part").touch()
    replaced = table.publish(version)
    pairs.append((version, "" if replaced is None else replaced.name))
    table.drop_old()
    named = table.current()
    assert (Path(root) / named.name / "part").exists() or table.current() != named
print(json.dumps(pairs))
"""  # each version with the one that it replaced


def test_of_a_thousand_racing_publishes_none_dangles_and_none_is_lost(tmp_path: Path):
    root, writers = str(tmp_path / "t"), 4
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISHES_MANY, root, str(writer), "250"], stdout=subprocess.PIPE
        )
        for writer in range(writers)
    ]
    pairs = [pair for job in jobs for pair in json.loads(job.communicate()[0])]
    after = {replaced: version for version, replaced in pairs}
    assert len(after) == len(pairs) == 1_000  # no version was replaced twice
    chain = [""]
    while chain[-1] in after:
        chain.append(after[chain[-1]])
    table = VersionedTable(root)
    assert len(chain) == 1_001
    assert table.current_path().endswith(chain[-1])
    table.drop_old()
    left = sorted(path.name for path in Path(root).iterdir())
    assert left == sorted(["CURRENT", *chain[-2:]])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format": 99, "version": "x"}', b"\xff"]
)
def test_a_damaged_pointer_is_an_answer(tmp_path: Path, content: bytes):
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(FileFormatError, match="CURRENT"):
        VersionedTable(str(tmp_path)).current()
