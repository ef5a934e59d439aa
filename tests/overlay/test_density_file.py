"""Densities from the pipeline's files: read as they were written, refused if they do not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearcast.model import Attribute, Space
from nearcast.model.errors import FileFormatError
from nearcast.overlay import Extent, GridDensity, MarginalDensity
from nearcast.overlay.density_file import read_density
from nearcast.pipeline.jobs.histogram import EventHistogram, save_histogram
from nearcast.server.learned.histogram_files import HistogramFiles

SHOPS = Space(
    name="shops",
    topic_filter="shops/#",
    attributes=(Attribute.number("price", 0, 100), Attribute.category("kind", ["food", "tools"])),
)
EXTENT = Extent((0.0, -0.5), (100.0, 1.5))
NAMES = ("price", "kind")
BOX = ((10.0, -0.5), (30.0, 0.5))


def grid() -> EventHistogram:
    counts = np.array([[1.0, 2.0], [0.0, 5.0], [3.0, 1.0], [0.0, 0.0]])
    return EventHistogram("shops", NAMES, EXTENT, 12, counts, None)


def marginals() -> EventHistogram:
    samples = np.array([[1.0, 0.0], [20.0, 0.0], [25.0, 1.0], [90.0, 1.0]])
    return EventHistogram("shops", NAMES, EXTENT, 4, None, samples)


@pytest.mark.parametrize("histogram", [grid(), marginals()])
def test_what_the_pipeline_wrote_is_the_same_density(
    histogram: EventHistogram, tmp_path: Path
) -> None:
    path = tmp_path / "histogram-shops.json"
    save_histogram(histogram, path)
    density = HistogramFiles(tmp_path, [SHOPS]).densities["shops"]
    assert isinstance(density, GridDensity if histogram.samples is None else MarginalDensity)
    assert density.expected(BOX) == histogram.density().expected(BOX) > 0


def saved(tmp_path: Path, **changes: Any) -> str:
    save_histogram(grid(), tmp_path / "one.json")
    content = json.loads((tmp_path / "one.json").read_text())
    content.update(changes)
    return json.dumps({key: value for key, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "plan"}, "another kind"),
        ({"format_version": 2}, "format version 2"),
        ({"space": "jobs"}, "'jobs'"),
        ({"attributes": ["price", "age"]}, "age"),
        ({"highs": [50.0, 1.5]}, "as configured"),
        ({"lows": None}, "damaged"),
        ({"counts": [1, 2, 3]}, "damaged"),
        ({"counts": [-1, 2, 3, 4, 5, 6, 7, 8]}, "damaged"),
        ({"kind": "marginals"}, "damaged"),
        ({"kind": "marginals", "samples": [[1.0], [None]]}, "damaged"),
        ({"kind": "marginals", "samples": [["NaN"], ["x"]]}, "damaged"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match=says) as refused:
        read_density(saved(tmp_path, **changes), SHOPS, where="here.json")
    assert "here.json" in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_no_json_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError):
        read_density(text, SHOPS, where="here.json")


def test_a_node_goes_on_without_a_file_and_says_what_is_wrong_with_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="nearcast"):
        assert HistogramFiles(None, [SHOPS]).densities == {}
        assert HistogramFiles(tmp_path, [SHOPS]).densities == {}
        (tmp_path / "histogram-shops.json").write_bytes(b"\xff\xfe")
        assert HistogramFiles(tmp_path, [SHOPS]).densities == {}
        (tmp_path / "histogram-shops.json").write_text(saved(tmp_path, format="plan"))
        assert HistogramFiles(tmp_path, [SHOPS]).densities == {}
    levels = [one.levelname for one in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING"]
    assert "another kind of file" in caplog.text


def test_a_file_that_changes_is_read_again_and_the_network_stands_in_when_it_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "histogram-shops.json"
    files = HistogramFiles(tmp_path, [SHOPS])
    assert not files.load_changed()
    save_histogram(grid(), path)
    assert files.load_changed()
    own = files.densities["shops"]
    assert not files.load_changed()
    assert files.densities["shops"] is own

    shared = json.dumps({"shops": json.loads(saved(tmp_path)), "pubs": {}}).encode()
    with caplog.at_level(logging.INFO, logger="nearcast"):
        assert not files.take_shared(shared)  # the node's own file decides
    assert "pubs: no such space here" in caplog.text
    assert "own file decides" in caplog.text
    assert files.densities["shops"] is own

    path.write_text("damaged")
    assert not files.load_changed()
    assert files.densities["shops"] is own
    path.unlink()
    assert files.load_changed()
    assert files.densities["shops"] is not own
    assert files.densities["shops"].expected(BOX) == own.expected(BOX)
    assert files.take_shared(b"{}") is False
    assert files.densities == {}


@pytest.mark.parametrize("data", [b"", b"3", b"[1]", b"\xff", b'{"shops": {"format": "plan"}}'])
def test_histograms_of_the_network_that_do_not_fit_are_refused_and_the_old_ones_stay(
    data: bytes, tmp_path: Path
) -> None:
    files = HistogramFiles(None, [SHOPS])
    assert files.take_shared(json.dumps({"shops": json.loads(saved(tmp_path))}).encode())
    before = files.densities
    with pytest.raises(FileFormatError):
        files.take_shared(data)
    assert files.densities == before
