"""The results of the demonstration: tables, plain sentences, and a page with a map of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from nearcast.demo.city import NEAR_M
from nearcast.demo.history import HOURS
from nearcast.demo.inhabitants import TIMES_FASTER
from nearcast.demo.story import Chapter, DemoStory

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem;
       color: #1c2733; background: #fff }
h1 { margin-bottom: 0 } h2 { margin: 2rem 0 .5rem; font-size: 1.2rem }
table { border-collapse: collapse; margin: .5rem 0; width: 100% }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #d8dee6; text-align: right }
th { font-weight: 600; vertical-align: bottom } th:last-child, td:last-child { background: #eef4fb }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: nowrap }
ul { padding-left: 1.2rem } svg { max-width: 100%; height: auto; display: block }
.good { color: #17693a } .bad { color: #a11d1d } .note { color: #55606c }
.legend span { margin-right: 1rem; white-space: nowrap }
.legend i { display: inline-block; width: .9em; height: .9em; margin: 0 .3em -.1em 0 }
"""
_SAME = 0.02  # a smaller difference than this is none
_NOTHING = "–"
RUNS_DIFFER = (
    "The city is small. In another town (--seed) the same plan gains more or less, and runs differ "
    "by some messages."
)


@dataclass(frozen=True, slots=True)
class PageTable:
    """Headings and rows of text; the first column is the label."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(story: DemoStory) -> Iterator[PageTable]:
    """Yield what learning changed, as tables; a dash stands where a figure has no meaning."""
    if story.learned is None:
        return
    if story.quadrants is not None:
        yield _between_nodes(story, story.learned, story.quadrants)
    before, after = story.no_plan, story.learned
    yield PageTable(
        "Retained messages for clients that arrive at a bus stop",
        ("", "sent at once (plain MQTT)", "learned policy"),
        (
            ("retained messages sent", f"{before.copies:,}", f"{after.copies:,}"),
            (
                "median wait for the first message",
                f"{before.wait_s:.2f} s",
                f"{after.wait_s:.2f} s",
            ),
        ),
    )


def _between_nodes(story: DemoStory, learned: Chapter, quadrants: Chapter) -> PageTable:
    chapters = (story.no_plan, quadrants, learned)
    messages = tuple(_number(one.messages) for one in chapters)
    sizes = tuple(_number(None if one.bytes is None else one.bytes // 1000) for one in chapters)
    headings = ("flooding (calculated)", "no plan", "quadrants only", "learned plan")
    handovers = (_number(quadrants.handovers), _number(learned.handovers))
    rows = [
        ("messages and answers", _number(story.flooded), *messages),
        ("kilobytes", _NOTHING, *sizes),
        ("handovers to another node", _NOTHING, _NOTHING, *handovers),
        (
            "areas (leaves) of the plan",
            _NOTHING,
            _NOTHING,
            str(story.leaves_quadrants),
            str(story.leaves),
        ),
    ]
    return PageTable(
        f"Traffic between the {story.nodes} nodes, for the same {story.no_plan.events:,} events",
        ("", *headings),
        tuple(row for row in rows if set(row[1:]) != {_NOTHING, "0"}),
    )


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"


def verdicts(story: DemoStory) -> list[str]:
    """Return sentences about what was gained and what was not, as the figures say."""
    learned, quadrants = story.learned, story.quadrants
    if learned is None:
        return []
    said = []
    if quadrants is not None:
        others = (
            ("with flooding", story.flooded),
            ("without a plan", story.no_plan.messages),
            ("with quadrants only", quadrants.messages),
        )
        said += [
            compared("Messages between nodes", learned.messages, name, other)
            for name, other in others
        ]
        said += [
            compared("Handovers", learned.handovers, "with quadrants only", quadrants.handovers),
            compared(
                "Areas needed for as many people", story.leaves,
                "with quadrants only",
                story.leaves_needed,
            ),
        ]  # fmt: skip
    before = story.no_plan.copies
    said.append(compared("Retained messages sent", learned.copies, "with plain MQTT", before))
    return [one for one in said if one]


def compared(what: str, ours: int | None, how: str, other: int | None) -> str:
    """Return a sentence that compares a figure, of which less is better; empty without figures.

    >>> compared("Messages", 80, "with flooding", 100)
    'Messages: 20 % fewer than with flooding.'
    >>> compared("Messages", 101, "without a plan", 100)
    'Messages: as many as without a plan. No gain yet.'
    """
    if ours is None or not other:
        return ""
    change = ours / other - 1
    if abs(change) < _SAME:
        return f"{what}: as many as {how}. No gain yet."
    if change < 0:
        return f"{what}: {-100 * change:.0f} % fewer than {how}."
    return f"{what}: {100 * change:.0f} % more than {how}. No gain yet."


def faults(story: DemoStory) -> int:
    """Return how many faults the audit found."""
    return 0 if story.audit is None else sum(story.audit["faults"].values())


def audit_verdict(story: DemoStory) -> str:
    """Return what the audit found, as a sentence."""
    found = faults(story)
    if not found:
        return "Audit of all logs: no message was lost, doubled or late."
    return f"Audit of all logs: {found:,} faults. Each is a row of the table audit/faults."


def write_page(story: DemoStory, directory: Path) -> Path:
    """Write the page and return its path; all that it shows is in that one file."""
    from nearcast.demo.plan_map import plan_map
    from nearcast.locality import load_plan

    plan = load_plan(directory / "nightly" / "plan.json")
    path = directory / "demo.html"
    svg = plan_map(plan, story.names, story.people_at)
    path.write_text(_page(story, svg), encoding="utf-8")
    return path


def _html(table: PageTable) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in table.headings)
    cells = ("".join(f"<td>{escape(one)}</td>" for one in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>"


def _page(story: DemoStory, svg: str) -> str:
    said = "".join(f"<li>{escape(one)}</li>" for one in verdicts(story))
    nodes = "one node" if story.nodes == 1 else f"{story.nodes} nodes that act as one broker"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Nearcast: a city that learns</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>A city that learns</h1>
<p>{story.people} MQTT clients move through a small city on foot, by car and by bus, and their clock
runs {TIMES_FASTER} times as fast. They are connected to {nodes}. In {story.no_plan.seconds:g}
seconds {story.no_plan.news:,} events happened, and {story.no_plan.near:,} messages brought them to
the clients within {NEAR_M} m.</p>
<p>Then Spark read where everybody had been in the {HOURS} hours before, a record that the same
simulation made, and the nodes' logs. From the record it learned a plan, which says which node
serves which part of the city; from the logs it learned policies, which say when to send retained
messages. The running nodes loaded both, everybody connected to the node of the first place, and
the same {story.no_plan.seconds:g} seconds happened again.</p>
<h2>The plan</h2>
<p>The plan divides the city into {story.leaves} areas, called leaves. Areas with a dark border are
cut where few people cross (R leaves); what is left is divided into quadrants (Q leaves). Areas are
smaller where there are more people. The node that serves an area knows the subscriptions there: an
event goes to that node, not to every node. The dots are the clients at the end of the run.</p>
{svg}
{"".join(_html(table) for table in tables(story))}
<h2>What was gained</h2>
<ul>{said}</ul>
<p class="note">{RUNS_DIFFER}</p>
<p class="{"bad" if faults(story) else "good"}">{escape(audit_verdict(story))}</p>
</body></html>
"""
