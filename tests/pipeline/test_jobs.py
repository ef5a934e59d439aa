"""A job of the pipeline is declared once: its class, its command, and the recipe that says so."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import nearcast.cli
from nearcast.pipeline import audit, jobs

ROOT = Path(__file__).parents[2]
NO_BATCH_JOB = {"stream", "run", "whatif"}  # a query without end, all jobs, and no Spark


def declared() -> list[type]:
    """Return the classes of all modules of jobs that have what `Job` asks for."""
    modules = [
        import_module(f"{package.__name__}.{one.name}")
        for package in (jobs, audit)
        for one in pkgutil.iter_modules(package.__path__)
    ]
    classes = {
        one
        for module in modules
        for _, one in inspect.getmembers(module, inspect.isclass)
        if one.__module__ == module.__name__ and {"name", "check", "run"} <= set(dir(one))
    }
    return sorted(classes, key=lambda one: one.__name__)


def commands() -> dict[str, Any]:
    tree: Any = typer.main.get_command(nearcast.cli.app)
    found: dict[str, Any] = tree.commands["pipeline"].commands
    return found


def test_every_job_has_a_command_and_every_command_a_job():
    assert {one.name for one in declared()} == set(commands()) - NO_BATCH_JOB  # type: ignore[attr-defined]


@pytest.mark.parametrize("job", declared(), ids=lambda one: one.__name__)
def test_a_job_is_a_value_with_an_output(job: type):
    assert dataclasses.is_dataclass(job)
    assert job.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "output" in {one.name for one in dataclasses.fields(job)}
    assert job.__name__.endswith("Job")


@pytest.mark.parametrize("name", sorted(set(commands()) - NO_BATCH_JOB))
def test_every_command_has_the_options_of_all_jobs_and_an_example(name: str):
    command = commands()[name]
    options = {text for one in command.params for text in one.opts}
    assert {"--input", "--output", "--master", "--json"} <= options
    assert f"Example: nearcast pipeline {name}" in " ".join(command.help.split())


def test_the_recipe_names_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text.partition("### Add a pipeline job")[2].partition("\n#")[0]
    named = re.findall(r"`((?:src|tests|docs)/[\w/.-]+)`", recipe)
    assert len(named) >= 5
    assert [name for name in named if not (ROOT / name).exists()] == []
