"""The OpenAPI document is whole, and the API keeps to it, whatever it is sent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema_rs import Draft202012Validator
from tests.http.conftest import ManagedBroker

from nearcast.server.http.endpoint import ENDPOINTS

pytestmark = pytest.mark.server

_RULES = """
[checks]
positive_data_acceptance.enabled = false  # what no schema says: a topic with a wildcard, a rank
negative_data_rejection.expected-statuses = ["4xx"]  # also 413: too much of it
"""


def test_the_document_has_every_endpoint_with_schemas_that_are_valid(site: ManagedBroker):
    found = site.nobody().get("/api/openapi.json").json
    assert found["openapi"].startswith("3.1")
    told = {(path, method.upper()) for path, some in found["paths"].items() for method in some}
    assert told == {(one.path, one.method) for one in ENDPOINTS}
    for schema in found["components"]["schemas"].values():
        Draft202012Validator({**schema, "components": found["components"]})  # it checks it
    names = [one["operationId"] for some in found["paths"].values() for one in some.values()]
    assert len(names) == len(set(names))
    for some in found["paths"].values():
        for one in some.values():
            assert one["summary"].endswith(".")


def test_schemathesis_finds_nothing(site: ManagedBroker, tmp_path: Path):
    (tmp_path / "rules.toml").write_text(_RULES)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(tmp_path / "rules.toml")),
            *("run", f"http://127.0.0.1:{site.port}/api/openapi.json"),
            *("--header", f"Authorization: Bearer {site.token}"),
            *("--phases", "coverage,fuzzing", "--max-examples", "3"),
            *("--seed", "7", "--generation-database", "none", "--no-color"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6_000:]
    passed = re.findall(r"(\d+) passed", done.stdout)  # operations by phase, then all cases
    assert max(map(int, passed)) > 500, done.stdout[-6_000:]
    assert site.nobody().get("/healthz").status == 200
    assert "internal error" not in site.program().get("/api/log?limit=1000").body.decode()
