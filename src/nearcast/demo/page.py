"""What the demonstration came to: tables, plain words, and a page with the map of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from nearcast.demo.story import Chapter, Story

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #1c2733; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .35rem .9rem; border-bottom: 1px solid #d8dee6; text-align: right }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
.good { color: #17693a } .bad { color: #a11d1d }
"""
_SAME = 0.02  # a smaller difference than this is none
_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of text; the first column is the label."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(story: Story) -> Iterator[Table]:
    """Yield what learning changed; a figure that means nothing somewhere is a dash there."""
    if story.learned is None:
        return
    if story.quadrants is not None:
        yield _between_nodes(story, story.learned, story.quadrants)
    before, after = story.no_plan, story.learned
    yield Table(
        "Retained messages, for who comes to a stop",
        ("", "at once, as MQTT says", "learned"),
        (
            ("copies sent to newcomers", f"{before.copies:,}", f"{after.copies:,}"),
            ("first message after, median", f"{before.wait_s:.2f} s", f"{after.wait_s:.2f} s"),
        ),
    )


def _between_nodes(story: Story, learned: Chapter, quadrants: Chapter) -> Table:
    chapters = (story.no_plan, quadrants, learned)
    messages = tuple(_number(one.messages) for one in chapters)
    sizes = tuple(_number(None if one.bytes is None else one.bytes // 1000) for one in chapters)
    headings = ("flooding (counted)", "no plan", "quadrants alone", "learned")
    handovers = (_number(quadrants.handovers), _number(learned.handovers))
    rows = [
        ("messages, with answers", _number(story.flooded), *messages),
        ("kilobytes", _NOTHING, *sizes),
        ("handovers to another node", _NOTHING, _NOTHING, *handovers),
        ("leaves", _NOTHING, _NOTHING, str(story.leaves_quadrants), str(story.leaves)),
    ]
    return Table(
        f"Between {story.nodes} nodes, the same {story.no_plan.events:,} events each time",
        ("", *headings),
        tuple(row for row in rows if set(row[1:]) != {_NOTHING, "0"}),
    )


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"


def verdicts(story: Story) -> list[str]:
    """Return what was gained, and what was not, in plain words that follow from the figures."""
    learned, quadrants = story.learned, story.quadrants
    if learned is None:
        return []
    said = []
    if quadrants is not None:
        others = (
            ("flooding", story.flooded),
            ("no plan", story.no_plan.messages),
            ("quadrants alone", quadrants.messages),
        )
        said += [
            compared("Messages between nodes", learned.messages, name, other)
            for name, other in others
        ]
        said.append(
            compared("Handovers", learned.handovers, "quadrants alone", quadrants.handovers)
        )
        said.append(
            compared(
                "Brokers needed, one for each leaf",
                story.leaves,
                "quadrants alone",
                story.leaves_needed,
            )
        )
    said.append(compared("Retained copies", learned.copies, "before", story.no_plan.copies))
    return [one for one in said if one]


def compared(what: str, ours: int | None, name: str, other: int | None) -> str:
    """Return how a figure that should be small compares; without a gain, it says so.

    >>> compared("Messages", 80, "flooding", 100)
    'Messages: 20 % fewer than with flooding.'
    >>> compared("Messages", 101, "no plan", 100)
    'Messages: as many as with no plan. Not gained yet.'
    """
    if ours is None or not other:
        return ""
    change = ours / other - 1
    than = "before" if name == "before" else f"with {name}"
    if abs(change) < _SAME:
        return f"{what}: as many as {than}. Not gained yet."
    if change < 0:
        return f"{what}: {-100 * change:.0f} % fewer than {than}."
    return f"{what}: {100 * change:.0f} % more than {than}. Not gained yet."


def faults(story: Story) -> int:
    """Return how many faults the audit found."""
    return 0 if story.audit is None else sum(story.audit["faults"].values())


def write_page(story: Story, directory: Path) -> Path:
    """Write the page and return where it is; the map is inside."""
    from nearcast.locality import load_plan
    from nearcast.locality.drawing import draw_plan

    picture = directory / "plan.svg"
    draw_plan(load_plan(directory / "nightly" / "plan.json"), picture)
    svg = picture.read_text(encoding="utf-8")
    path = directory / "demo.html"
    path.write_text(_page(story, svg[svg.index("<svg") :]), encoding="utf-8")
    return path


def _html(table: Table) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in table.headings)
    cells = ("".join(f"<td>{escape(one)}</td>" for one in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>"


def _page(story: Story, svg: str) -> str:
    found = faults(story)
    verdict = "nothing lost, doubled or late" if not found else f"{found} faults"
    said = "".join(f"<li>{escape(one)}</li>" for one in verdicts(story))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Nearcast: a city that learns</title>
<style>{_STYLE}</style></head><body>
<h1>A city that learns</h1>
<p>{story.people} people, half of them in cars three times as fast, on {story.nodes} node(s). They
moved for {story.no_plan.seconds:g} s; Spark read the log; the running nodes took the plan and the
policies that came of it; then the same happened again. {story.no_plan.news:,} events brought
{story.no_plan.near:,} messages to those within 150 m.</p>
{"".join(_html(table) for table in tables(story))}
<ul>{said}</ul>
<p class="{"bad" if found else "good"}">Audit of all nodes' logs: {escape(verdict)}.</p>
<h2>The plan</h2>
<p>{story.leaves} leaves: R leaves over the regions where people are slow, Q leaves over the rest,
the denser the smaller. Each node holds some of them, neighbours together.</p>
{svg}
</body></html>
"""
