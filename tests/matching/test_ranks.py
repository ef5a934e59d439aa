"""A rank is declared once; a rank that is added by half is noticed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.config.schema import SpaceSection
from nearcast.index.boxes import input as box_arguments
from nearcast.matching import Matcher, ranking
from nearcast.matching.query import Query
from nearcast.model import RANKS, Attribute, Event, Space, Subscription, UnknownNameError, ranks
from nearcast.model import read_publication as read

ROOT = Path(__file__).parents[2]


def test_every_place_that_names_ranks_names_those_that_are_declared() -> None:
    names = list(RANKS)
    assert [one.name for one in RANKS.values()] == names
    assert list(ranking.SCORES) == names
    assert all(name in str(SpaceSection.model_fields["rank"].description) for name in names)
    assert [read([("$rank", name)]).rank for name in names] == names
    blended = ranks.kernel_ranks()
    assert blended == box_arguments.RANKS
    page = (ROOT / "docs" / "matching.md").read_text(encoding="utf-8")
    table = page[page.index("## Ranks") : page.index("## Many events")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == names


@pytest.mark.parametrize("command", ["match", "stream"])
def test_the_help_of_a_command_names_the_ranks(command: str) -> None:
    told = CliRunner().invoke(app, ["pipeline", command, "--help"], env={"COLUMNS": "300"}).output
    assert ", ".join(RANKS) in told


def imported_again(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of a module once more, under another name."""
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location("imported_again", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "imported_again", copy)
    spec.loader.exec_module(copy)


def test_what_is_declared_today_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranking, box_arguments):
        imported_again(module, monkeypatch)


def test_a_rank_without_a_score_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    new = ranks.RankDeclaration(name="freshest", kernel=None, plain_score=lambda _: 0.0)
    monkeypatch.setitem(RANKS, "freshest", new)
    with pytest.raises(NotImplementedError, match="freshest"):
        imported_again(ranking, monkeypatch)


def test_a_rank_for_which_the_kernels_have_no_component_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = ranks.RankDeclaration(name="freshest", kernel=3, plain_score=lambda _: 0.0)
    monkeypatch.setitem(RANKS, "freshest", new)
    with pytest.raises(ValueError, match="zip"):
        imported_again(box_arguments, monkeypatch)


@pytest.mark.parametrize("count", [1, 40])  # scanned one by one, and in an index
def test_an_unknown_rank_is_refused_and_not_ranked_as_another(count: int) -> None:
    space = Space(name="s", topic_filter="#", attributes=(Attribute.number("x", 0, 9),))
    matcher = Matcher([space])
    for key in range(count):
        matcher.add(key, Subscription(topic_filter="#"))
    event = Event.of(space, "a", {"x": 1})
    for name in RANKS:
        assert matcher.top(event, 1, name)[0].key == 0
    for rank in ("freshest", {"freshest": 1.0}, "freshest:1,weight:1"):
        with pytest.raises(UnknownNameError):
            matcher.top(event, 1, rank)
    index = next(iter(matcher.shelves()))[2]
    with pytest.raises(KeyError, match="freshest"):
        index.top(Query.of(event), 1, "freshest")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("narrowest:0.7,weight:0.3", "narrowest:0.7,weight:0.3"),
        ("weight:3, narrowest:7", "narrowest:0.7,weight:0.3"),
        ("centre:1,nearest:1,weight:1,narrowest:1", None),
        ("weight:5", "weight"),
        ("weight:5,narrowest:0", "weight"),
        ("weight:1e-300,narrowest:1e300", None),
    ],
)
def test_a_blend_has_one_canonical_text_that_means_the_same(
    text: str, canonical: str | None
) -> None:
    shares = ranks.parse_rank(text)
    found = ranks.rank_text(shares)
    assert canonical is None or found == canonical
    assert ranks.parse_rank(found) == shares
    if not isinstance(shares, str):
        assert sum(shares.values()) == pytest.approx(1)
        assert list(shares) == [name for name in RANKS if name in shares]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("narrowest:0,weight:0", "found shares that sum to 0; expected a sum above 0"),
        ("narrowest:1,weight:-1", "the share of weight: found -1.0; expected a number from 0"),
        ("narrowest:1,wait:1", "found 'wait'; expected one of narrowest, nearest, centre, weight"),
        ("narrowest:nan,weight:1", "the share of narrowest: found 'nan'"),
        ("narrowest:inf,weight:1", "the share of narrowest: found 'inf'"),
        ("narrowest:1e308,weight:1e308", "shares that sum to inf"),
        ("narrowest:1,narrowest:2", "found narrowest twice; expected each rank once"),
        ("narrowest,weight:2", "expected a rank and its share, such as weight:0.3"),
        ("narrowest:,weight:2", "the share of narrowest: found ''"),
        ("freshest", "found 'freshest'; expected one of narrowest"),
        ("", "found ''"),
    ],
)
def test_a_bad_blend_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape("$rank")) as problem:
        read([("$rank", text)])
    assert told in str(problem.value)


def test_the_recipe_names_all_that_a_new_rank_needs() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = text[text.index("### Add a rank") :].partition("\n#")[0]
    named = set(re.findall(r"`((?:src|docs|tests)/[\w/.-]+)`", recipe))
    assert all((ROOT / one).exists() for one in named)
    assert {
        "src/nearcast/model/ranks.py",
        "src/nearcast/matching/ranking.py",
        "src/nearcast/config/schema.py",
        "src/nearcast/cli/spark.py",
        "tests/support/crowd_model.py",
        "docs/matching.md",
        "tests/matching/test_ranks.py",
    } <= named
