"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from nearcast.server.log_format import set_up_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    logger = logging.getLogger("nearcast")
    kept = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = kept[0], kept[1], kept[2]


def logged(form: str, level: str) -> str:
    stream = io.StringIO()
    set_up_logging(form, level, stream)
    log = logging.getLogger("nearcast.server")
    log.info("client %s came", "ann")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it broke")
    return stream.getvalue()


def test_json_lines_are_objects_with_level_and_message() -> None:
    lines = [json.loads(line) for line in logged("json", "info").splitlines()]

    assert [(one["level"], one["message"]) for one in lines] == [
        ("info", "client ann came"),
        ("error", "it broke"),
    ]
    assert "ValueError: why" in lines[1]["error"]
    assert lines[0]["time"].endswith("+00:00")


def test_text_lines_are_for_people_and_the_level_counts() -> None:
    assert "info     client ann came" in logged("text", "info")
    quiet = logged("text", "error")
    assert "ann" not in quiet
    assert "ValueError: why" in quiet
