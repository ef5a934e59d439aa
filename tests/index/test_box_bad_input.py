"""What a `BoxIndex` refuses: with a reason, and without having changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.invariants import check_boxes

from nearcast.index import BoxIndex
from nearcast.model.errors import (
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
    LimitError,
    MisuseError,
    OutOfRangeError,
    UnknownNameError,
)

INF, NAN = math.inf, math.nan


def small_index() -> BoxIndex:
    return BoxIndex.from_arrays([1, 2], [[0.0, 0.0], [5.0, -INF]], [[3, 3], [9, 2]])


def contents(index: BoxIndex) -> list[Any]:
    return [(k, *(side.tolist() for side in index.box(k))) for k in (1, 2)]


REFUSED: list[tuple[str, type[Exception], Callable[[BoxIndex], object]]] = [
    ("a key that is there", KeyInUseError, lambda b: b.add(1, (0, 0), (1, 1))),
    ("a key that is not there, moved", KeyMissingError, lambda b: b.move(3, (0, 0), (1, 1))),
    ("a key that is not there, removed", KeyMissingError, lambda b: b.remove(3)),
    ("a key that is not there, asked for", KeyMissingError, lambda b: b.box(3)),
    ("a key beyond 64 bits", OutOfRangeError, lambda b: b.add(2**63, (0, 0), (1, 1))),
    ("a key that is text", MisuseError, lambda b: b.add("x", (0, 0), (1, 1))),  # type: ignore[arg-type]
    ("a key that is a fraction", MisuseError, lambda b: b.remove(1.5)),  # type: ignore[arg-type]
    ("low above high", OutOfRangeError, lambda b: b.add(3, (0, 2), (1, 1))),
    ("low above high, moved", OutOfRangeError, lambda b: b.move(1, (0, 2), (1, 1))),
    ("NaN as low", OutOfRangeError, lambda b: b.add(3, (0, NAN), (1, 1))),
    ("NaN as high", OutOfRangeError, lambda b: b.move(1, (0, 0), (1, NAN))),
    ("+inf as low", OutOfRangeError, lambda b: b.add(3, (0, INF), (1, INF))),
    ("-inf as high", OutOfRangeError, lambda b: b.add(3, (0, -INF), (1, -INF))),
    ("too few lows", MisuseError, lambda b: b.add(3, (0,), (1, 1))),
    ("too many highs", MisuseError, lambda b: b.move(1, (0, 0), (1, 1, 1))),
    ("a number as lows", MisuseError, lambda b: b.add(3, 0, (1, 1))),  # type: ignore[arg-type]
    ("text as lows", MisuseError, lambda b: b.add(3, ("a", "b"), (1, 1))),  # type: ignore[arg-type]
    ("NaN as weight", OutOfRangeError, lambda b: b.add(3, (0, 0), (1, 1), weight=NAN)),
    ("infinite weight", OutOfRangeError, lambda b: b.add(3, (0, 0), (1, 1), weight=INF)),
    ("text as weight", MisuseError, lambda b: b.add(3, (0, 0), (1, 1), weight="x")),  # type: ignore[arg-type]
    ("infinity in a point", OutOfRangeError, lambda b: b.match((0, INF))),
    ("-infinity in a point", OutOfRangeError, lambda b: b.match((-INF, 0))),
    ("NaN in a point", OutOfRangeError, lambda b: b.match((NAN, 0))),
    ("a point too short", MisuseError, lambda b: b.match((0,))),
    ("a point that is none", MisuseError, lambda b: b.match(None)),  # type: ignore[arg-type]
    ("NaN in points", OutOfRangeError, lambda b: b.match_many([[0.0, 0.0], [0.0, NAN]])),
    ("infinity in points", OutOfRangeError, lambda b: b.match_many([[0.0, 0.0], [0.0, INF]])),
    ("points of another width", MisuseError, lambda b: b.match_many([[0, 0, 0]])),
    ("points in one row", MisuseError, lambda b: b.match_many([0, 0])),
    ("points that are text", MisuseError, lambda b: b.match_many([["a", "b"]])),
    ("an event box upside down", OutOfRangeError, lambda b: b.match_box((1, 1), (0, 2))),
    ("an event box with NaN", OutOfRangeError, lambda b: b.match_box((NAN, 1), (2, 2))),
    ("k of 0", MisuseError, lambda b: b.top((0, 0), 0)),
    ("k that is a fraction", MisuseError, lambda b: b.top((0, 0), 1.5)),  # type: ignore[arg-type]
    ("infinity, ranked", OutOfRangeError, lambda b: b.top((0, INF), 1)),
    ("NaN, ranked", OutOfRangeError, lambda b: b.top_many([[0, NAN]], 1)),
    ("an unknown rank", UnknownNameError, lambda b: b.top((0, 0), 1, "nearest")),
    ("an unknown part of a blend", UnknownNameError, lambda b: b.top((0, 0), 1, {"age": 1})),
    ("an empty blend", MisuseError, lambda b: b.top((0, 0), 1, {})),
    ("a blend of nothing", OutOfRangeError, lambda b: b.top((0, 0), 1, {"weight": 0})),
    ("a negative share", OutOfRangeError, lambda b: b.top((0, 0), 1, {"weight": -1})),
    ("a share that is NaN", OutOfRangeError, lambda b: b.top((0, 0), 1, {"weight": NAN})),
]


@pytest.mark.parametrize(
    ("error", "call"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_bad_input_is_refused_and_changes_nothing(
    error: type[Exception], call: Callable[[BoxIndex], object]
) -> None:
    index = small_index()
    before = contents(index)

    with pytest.raises(error) as caught:
        call(index)

    assert "expected" in str(caught.value)
    assert len(index) == 2
    assert contents(index) == before
    check_boxes(index)
    assert sorted(index.match((1, 1)).tolist()) == [1]


REFUSED_BUILDS: list[tuple[str, type[Exception], Callable[[], object]]] = [
    ("no attribute", MisuseError, lambda: BoxIndex(0)),
    ("too many attributes", LimitError, lambda: BoxIndex(65)),
    ("a fraction of attributes", MisuseError, lambda: BoxIndex(1.5)),  # type: ignore[arg-type]
    ("a key twice", KeyInUseError, lambda: BoxIndex.from_arrays([1, 1], [[0], [0]], [[1], [1]])),
    ("keys of fractions", MisuseError, lambda: BoxIndex.from_arrays([1.5], [[0]], [[1]])),
    ("too few keys", MisuseError, lambda: BoxIndex.from_arrays([1], [[0], [0]], [[1], [1]])),
    (
        "a key beyond 64 bits",
        OutOfRangeError,
        lambda: BoxIndex.from_arrays(np.array([2**63], dtype=np.uint64), [[0]], [[1]]),
    ),
    ("other highs", MisuseError, lambda: BoxIndex.from_arrays([1], [[0]], [[1, 1]])),
    ("lows in one row", MisuseError, lambda: BoxIndex.from_arrays([1], [0], [1])),
    ("low above high", OutOfRangeError, lambda: BoxIndex.from_arrays([1], [[2]], [[1]])),
    ("NaN", OutOfRangeError, lambda: BoxIndex.from_arrays([1], [[NAN]], [[1]])),
    ("weights", MisuseError, lambda: BoxIndex.from_arrays([1], [[0]], [[1]], weights=[1, 2])),
    ("NaN weight", OutOfRangeError, lambda: BoxIndex.from_arrays([1], [[0]], [[1]], weights=[NAN])),
    ("an extent of nothing", OutOfRangeError, lambda: BoxIndex(1, extent=([1], [1]))),
    ("an extent with NaN", OutOfRangeError, lambda: BoxIndex(1, extent=([NAN], [1]))),
    ("an extent too short", MisuseError, lambda: BoxIndex(2, extent=([0], [1]))),
    ("an extent that is none", MisuseError, lambda: BoxIndex(2, extent=3)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("error", "call"),
    [case[1:] for case in REFUSED_BUILDS],
    ids=[case[0] for case in REFUSED_BUILDS],
)
def test_no_index_is_built_of_bad_input(error: type[Exception], call: Callable[[], object]) -> None:
    with pytest.raises(error):
        call()


def test_whatever_is_no_key_is_not_in_the_index() -> None:
    index = small_index()

    assert 1 in index
    assert np.int64(2) in index
    assert all(key not in index for key in (3, "1", None, 1.0, 2**70))


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "index"
    rng = np.random.default_rng(1)
    lows = rng.random((500, 2))
    BoxIndex.from_arrays(np.arange(500), lows, lows + 0.1).save(path)
    return path


def test_a_saved_index_is_opened_as_it_was_and_can_be_changed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lows = rng.random((500, 2))
    extent = ([0.0, 0.0], [2.0, 2.0])
    index = BoxIndex.from_arrays(
        np.arange(500), lows, lows + rng.random((500, 2)), weights=rng.random(500), extent=extent
    )
    index.remove(17)
    index.save(tmp_path / "index")
    opened = BoxIndex.open(tmp_path / "index")

    points = rng.random((50, 2))
    for rank in ("narrowest", "centre", "weight"):
        assert (opened.top_many(points, 5, rank) == index.top_many(points, 5, rank)).all()
    check_boxes(opened)
    opened.add(17, (0, 0), (0.5, 0.5))
    opened.move(3, (0, 0), (1, 1))
    opened.remove(4)
    check_boxes(opened)
    assert len(opened) == 499
    again = BoxIndex.open(tmp_path / "index")
    assert 17 not in again
    again.remove(5)
    assert 5 not in again
    assert len(BoxIndex.open(tmp_path / "index")) == 499


def test_an_index_is_not_saved_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")

    with pytest.raises(MisuseError):
        small_index().save(tmp_path)


def test_every_cut_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:cut])
            with pytest.raises(FileFormatError):
                BoxIndex.open(path)
        file.unlink()
        with pytest.raises(FileFormatError):
            BoxIndex.open(path)
        file.write_bytes(whole)
    check_boxes(BoxIndex.open(path))


def test_every_damaged_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    rng = np.random.default_rng(0)
    for file in sorted(path.glob("*.npy")):
        whole = bytearray(file.read_bytes())
        if len(whole) <= 128:
            continue
        for place in rng.integers(128, len(whole), 3).tolist():
            whole[place] ^= 64
            file.write_bytes(whole)
            with pytest.raises(FileFormatError):
                BoxIndex.open(path)
            whole[place] ^= 64
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 2'),
        ("nearcast boxes", "other boxes"),
        ('"keys"', '"locks"'),
        ('"leaf"', '"leave"'),
    ],
)
def test_another_version_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = saved(tmp_path)
    manifest = path / "boxes.json"
    manifest.write_text(manifest.read_text().replace(old, new, 1))

    with pytest.raises(FileFormatError, match="version 1"):
        BoxIndex.open(path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError):
        BoxIndex.open(tmp_path / "nothing")
