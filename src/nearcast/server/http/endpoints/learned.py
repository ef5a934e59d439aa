"""What the pipeline learned: policies in use, runs and audits found in the data directory."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.server.http.endpoint import Call, endpoint

if TYPE_CHECKING:
    from nearcast.server.http.site import Site

_REPORT = "run.json"
_LARGEST = 16 << 20
_MOST_FOLDERS = 200
_MOST_RUNS = 20
_MOST_POLICIES = 1_000


class PlanView(msgspec.Struct, frozen=True):
    """The plan in force."""

    version: int
    leaves: int
    nodes: list[str]


class PipelineRunView(msgspec.Struct, frozen=True):
    """A run of the pipeline as its report has it; `at` is when it ended."""

    folder: str
    at: int
    steps: list[dict[str, Any]]


class AuditView(msgspec.Struct, frozen=True):
    """What an audit found, in a run."""

    folder: str
    at: int
    summary: dict[str, Any]


class PolicyView(msgspec.Struct, frozen=True):
    """How a file of policies treats topics: `document` is the file without its large tables."""

    file: str
    topics: list[str]
    topic_count: int


class LearningView(msgspec.Struct, frozen=True):
    """What was learned: the plan, policies, and the last runs and audits, the newest first."""

    plan: PlanView | None
    policies: list[PolicyView]
    groups: dict[str, int]
    runs: list[PipelineRunView]
    audits: list[AuditView]


@endpoint("GET", "/api/learning")
def learning(call: Call) -> LearningView:
    """Return the plan and the policies in force, and the runs and audits of the data directory."""
    site = call.site
    named, holding = site.sources.plan(), site.node.deferred_retained
    groups: dict[str, int] = {}
    if holding is not None:
        groups = {one.name.lower(): count for one, count in holding.groups.follows().items()}
    plan = None
    if named is not None:
        plan = PlanView(named.version, len(named.plan.leaves), list(named.nodes))
    runs = list(_runs(site))
    audits = [
        AuditView(one.folder, one.at, step["summary"])
        for one in runs
        for step in one.steps
        if step.get("name") == "audit" and isinstance(step.get("summary"), dict)
    ]
    return LearningView(plan, list(_policies(site)), groups, runs, audits)


def _runs(site: Site) -> Iterator[PipelineRunView]:
    for path in found_files(site, _REPORT):
        document = json_file(path)
        if isinstance(document, dict) and document.get("format") == "nearcast-run":
            steps = document.get("steps")
            rows = (
                [one for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []
            )
            folder = str(path.parent.relative_to(_data(site)))
            yield PipelineRunView(folder, int(path.stat().st_mtime * 1000), rows)


def _policies(site: Site) -> Iterator[PolicyView]:
    for path in found_files(site, "policies.json"):
        document = json_file(path)
        topics = document.get("topics") if isinstance(document, dict) else None
        names = [_name_of(one) for one in topics] if isinstance(topics, (list, dict)) else []
        folder = str(path.relative_to(_data(site)))
        yield PolicyView(folder, names[:_MOST_POLICIES], len(names))


def _name_of(one: Any) -> str:
    return str(one.get("topic", "")) if isinstance(one, dict) else str(one)


def _data(site: Site) -> Path:
    return Path(site.sources.configuration().node.data)


def found_files(site: Site, name: str) -> list[Path]:
    """Return the files of a name in the data directory or a folder in it, the newest first."""
    data = _data(site)
    found: list[tuple[float, Path]] = []
    try:
        folders = [one for _, one in zip(range(_MOST_FOLDERS), data.iterdir(), strict=False)]
    except OSError:
        return []
    for folder in (data, *folders):
        path = folder / name
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:
            continue
    return [path for _, path in heapq.nlargest(_MOST_RUNS, found)]


def json_file(path: Path) -> Any:
    """Return what a file has as JSON, None where it cannot be read."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError, ValueError):
        return None
