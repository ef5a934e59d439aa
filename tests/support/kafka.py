"""Kafka in tests: skipped where it cannot be had."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.kafka_process import JARS, Kafka


def started_kafka(folder: Path) -> Kafka:
    """Return a running Kafka; skip the test where there is none, or no client for it."""
    if find_spec("confluent_kafka") is None:
        pytest.skip("confluent-kafka is not installed (make setup)")
    if not (JARS / "done").exists():
        pytest.skip("Kafka's jars are not here (make setup, with Maven)")
    return Kafka(folder)
