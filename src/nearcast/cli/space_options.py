"""Options of jobs that work on the events of one space, and what they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nearcast.config.schema import SpaceSection
    from nearcast.model import Space
    from nearcast.pipeline.jobs.match import MatchQuery

Config = Annotated[Path | None, typer.Option(help="The configuration file of the brokers.")]
ConfigFile = Annotated[Path, typer.Option(help="Where the space is declared.")]
SpaceName = Annotated[str, typer.Option("--space", help="The space that the events belong to.")]
TopicOfEvents = Annotated[str, typer.Option("--topic", help="The topic of the events.")]
Top = Annotated[int | None, typer.Option(min=1, help="Only the k best of each event.")]
Rank = Annotated[str, typer.Option(help="narrowest, nearest, centre or weight.")]


def space_section(config: Path, name: str) -> SpaceSection:
    """Return the section of a space in a configuration file."""
    from nearcast.config import load
    from nearcast.model.errors import UnknownNameError

    sections = {section.name: section for section in load(config, os.environ).space}
    if name not in sections:
        expected = f"one of {', '.join(sections)}" if sections else "a [[space]] there"
        raise UnknownNameError(f"the space {name!r}", where=str(config), expected=expected)
    return sections[name]


def match_query(space: Space, topic: str, top: int | None, rank: str) -> MatchQuery:
    """Return the query of `--topic`, `--top` and `--rank`; tables may have no topics."""
    from nearcast.matching.ranking import checked_rank
    from nearcast.pipeline.jobs.match import MatchQuery

    matching = topic or space.topic_filter.replace("+", "x").replace("#", "x")
    return MatchQuery(space.name, matching, top, checked_rank(rank))
