"""Map tiles out of one file: the right one, whatever the file looks like inside; no other bytes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.http.conftest import ManagedBroker
from tests.support.tile_files import MVT, numbers_of_zoom, write_tiles
from tests.support.waiting import wait_for

from nearcast.model.errors import EnvironmentProblem, FileFormatError, NearcastError
from nearcast.server.http.pmtiles import TileArchive, tile_number

ALL = {
    (z, x, y): b"%d/%d/%d" % (z, x, y)
    for z in range(5)
    for x in range(1 << z)
    for y in range(1 << z)
}


@pytest.mark.parametrize("z", range(7))
def test_the_number_of_a_tile_is_its_place_on_the_curve(z: int):
    for (x, y), number in numbers_of_zoom(z).items():
        assert tile_number(z, x, y) == number


def test_a_number_that_others_have_worked_out():
    assert tile_number(12, 3423, 1763) == 19_078_479  # an example of the format's description


@pytest.mark.parametrize("per_leaf", [0, 1, 7, 1_000])
@pytest.mark.parametrize("is_packed", [True, False])
def test_every_tile_is_found_however_directories_are_cut(
    tmp_path: Path, per_leaf: int, is_packed: bool
):
    path = write_tiles(tmp_path / "a.pmtiles", ALL, per_leaf=per_leaf, is_packed=is_packed)
    archive = TileArchive(path)
    for place, data in ALL.items():
        found = archive.tile(*place)
        assert found is not None
        assert (found.data, found.kind, found.is_packed) == (data, "image/png", False)
    for outside in ((5, 0, 0), (2, 4, 0), (2, 0, 4), (2, -1, 0), (-1, 0, 0), (10**9, 0, 0)):
        assert archive.tile(*outside) is None


@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(0, 7)), min_size=1),
    st.integers(0, 3),
)
def test_a_file_with_holes_and_equal_tiles_has_what_was_written_and_no_more(
    tmp_path_factory: pytest.TempPathFactory, places: set[tuple[int, int, int]], per_leaf: int
):
    tiles = {
        (z, x, y): b"sea" if (x + y) % 3 else b"%d %d %d" % (z, x, y)
        for z, x, y in places
        if x < 1 << z and y < 1 << z
    } or {(0, 0, 0): b"sea"}
    archive = TileArchive(
        write_tiles(tmp_path_factory.mktemp("t") / "a.pmtiles", tiles, per_leaf=per_leaf)
    )
    for place in ALL:
        found = archive.tile(*place)
        assert (found and found.data) == tiles.get(place)


def test_packed_tiles_and_the_source_of_a_map(tmp_path: Path):
    path = tmp_path / "a.pmtiles"
    write_tiles(path, ALL, kind=MVT, tiles_packed=True, metadata={"attribution": "© us"})
    archive = TileArchive(path)
    found = archive.tile(1, 0, 1)
    assert found is not None
    assert (gzip.decompress(found.data), found.is_packed) == (b"1/0/1", True)
    assert (archive.is_vector, archive.attribution()) == (True, "© us")
    assert (archive.min_zoom, archive.max_zoom) == (0, 4)


def test_a_file_that_is_none_is_named(tmp_path: Path):
    with pytest.raises(EnvironmentProblem, match="No such file"):
        TileArchive(tmp_path / "none.pmtiles")
    for content in (b"", b"PMTiles\x03", b"PMTiles\x02" + bytes(200), os.urandom(300)):
        (tmp_path / "bad.pmtiles").write_bytes(content)
        with pytest.raises(FileFormatError, match="PMTiles"):
            TileArchive(tmp_path / "bad.pmtiles")


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_a_problem_that_we_know_and_nothing_else(tmp_path: Path, seed: int):
    random, path = Random(seed), tmp_path / "a.pmtiles"
    write_tiles(path, ALL, per_leaf=20 * (seed % 3), is_packed=seed % 2 == 0)
    raw = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 3, 30))):
        raw[random.randrange(8, len(raw))] = random.randrange(256)
    path.write_bytes(raw[: random.choice((len(raw), len(raw) // 2, 200))])
    try:
        archive = TileArchive(path)
    except NearcastError:
        return
    archive.attribution()
    for place in ALL:
        with contextlib.suppress(NearcastError):
            archive.tile(*place)


@pytest.mark.server
def test_who_sees_the_map_gets_its_tiles(start_site: Callable[..., ManagedBroker], tmp_path: Path):
    path = write_tiles(tmp_path / "a.pmtiles", {(0, 0, 0): b"all", (1, 0, 1): b"part"})
    site = start_site({"tiles": str(path)})
    ann, nobody = site.viewer(), site.nobody()
    assert ann.get("/api/session").json["map"] == {
        "tiles": "/api/tiles/{z}/{x}/{y}",
        "min_zoom": 0,
        "max_zoom": 1,
        "vector": False,
        "attribution": "",
    }
    found = ann.get("/api/tiles/1/0/1")
    assert (found.status, found.body, found.headers["content-type"]) == (200, b"part", "image/png")
    again = ann.get("/api/tiles/1/0/1", **{"If-None-Match": found.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert ann.get("/api/tiles/1/1/1").status == 204
    for wrong in ("1/0/x", "1/0/-1", "1/0/1.0", "1/0/%D9%A1", "1/0/" + "9" * 20):
        assert ann.get(f"/api/tiles/{wrong}").status == 400
    assert nobody.get("/api/tiles/0/0/0").status == 401
    assert nobody.get("/api/session").json["map"]["tiles"] is None
    assert "https:" not in found.headers["content-security-policy"]


@pytest.mark.server
def test_another_file_is_served_after_a_reload_and_a_bad_one_is_refused(
    start_site: Callable[..., ManagedBroker], tmp_path: Path
):
    first = write_tiles(tmp_path / "a.pmtiles", {(0, 0, 0): b"first"})
    second = write_tiles(tmp_path / "b.pmtiles", {(0, 0, 0): b"second"})
    site = start_site({"tiles": str(first)})
    bot, broker = site.program(), site.broker

    def reload(tiles: Path) -> None:
        http = {**broker.sections["http"], "tiles": str(tiles)}
        Path(broker.reload_path).write_text(json.dumps({**broker.sections, "http": http}))
        os.kill(broker.pid, signal.SIGHUP)

    def served() -> bytes:
        return bot.get("/api/tiles/0/0/0").body

    assert served() == b"first"
    reload(second)
    wait_for(lambda: served() == b"second")
    third = tmp_path / "c.pmtiles"
    third.write_bytes(b"none")
    reload(third)
    wait_for(lambda: "PMTiles, version 3" in bot.get("/api/log").body.decode())
    assert served() == b"second"
