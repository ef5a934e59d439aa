"""The program on the page of the HTTP API prints what the page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.http.conftest import ManagedBroker, Mover
from tests.support.doc_pages import blocks

from nearcast.config import read
from nearcast.server.http.endpoint import ENDPOINTS
from nearcast.server.http.operators import set_operator

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says(start_site: Callable[..., ManagedBroker]):
    selective = (ROOT / "docs" / "selective.md").read_text(encoding="utf-8")
    configuration = read(blocks("toml", selective)[0], {}).configuration
    assert configuration is not None
    spaces = [one.model_dump(mode="json", exclude_defaults=True) for one in configuration.space]
    site = start_site(space=spaces)
    operators = Path(site.broker.sections["http"]["operators"])
    token = set_operator(operators, "monitor", "viewer", None)
    site.broker.end()
    site.broker.start()
    movers = [Mover(site.broker.port, f"courier-{n}").connect() for n in (1, 2)]
    (program,) = blocks("python", PAGE)
    promised = PAGE.split(program)[1].split("```")[2].strip()
    try:
        run = subprocess.run(
            [
                sys.executable,
                "-c",
                f"TOKEN = {token!r}\n" + program.replace("8080", str(site.port)),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        for one in movers:
            one.end()
    assert run.stdout.strip() == promised, run.stderr


def test_the_page_names_every_endpoint():
    missing = []
    for one in ENDPOINTS:
        short = one.path.replace("/api/clients/{client}/", "…/")
        if f"{one.path}`" not in PAGE and f"{one.path}?" not in PAGE and f"{short}`" not in PAGE:
            missing.append(one.path)
    assert missing == []
