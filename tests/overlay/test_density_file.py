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
from nearcast.server.learned.histogram_files import load_densities

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
    density = load_densities(tmp_path, [SHOPS])["shops"]
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
        assert load_densities(None, [SHOPS]) == {}
        assert load_densities(tmp_path, [SHOPS]) == {}
        (tmp_path / "histogram-shops.json").write_bytes(b"\xff\xfe")
        assert load_densities(tmp_path, [SHOPS]) == {}
        (tmp_path / "histogram-shops.json").write_text(saved(tmp_path, format="plan"))
        assert load_densities(tmp_path, [SHOPS]) == {}
    levels = [one.levelname for one in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING"]
    assert "another kind of file" in caplog.text
