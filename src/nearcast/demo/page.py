"""The demonstration as one HTML page: before and after, and the map of the plan."""

from __future__ import annotations

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

ROWS = (
    ("events published", "events"),
    ("deliveries to clients", "deliveries"),
    ("retained copies to newcomers", "copies"),
    ("handovers", "handovers"),
    ("messages between nodes", "messages"),
    ("bytes between nodes", "bytes"),
)


def rows(story: Story) -> list[tuple[str, int, int, str]]:
    """Return the figures side by side, with the change in percent."""
    return [
        (label, getattr(story.before, name), getattr(story.after, name), _change(story, name))
        for label, name in ROWS
    ]


def _change(story: Story, name: str) -> str:
    before, after = _rate(story.before, name), _rate(story.after, name)
    return "" if not before else f"{100 * (after / before - 1):+.0f} %"


def _rate(chapter: Chapter, name: str) -> float:
    """Return a figure for each event, since no two chapters have equally many."""
    return float(getattr(chapter, name)) / max(1, chapter.events)


def faults(story: Story) -> int:
    """Return how many faults the audit found."""
    return sum(story.audit["faults"].values())


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


def _page(story: Story, svg: str) -> str:
    table = "".join(
        f"<tr><td>{escape(label)}</td><td>{before:,}</td><td>{after:,}</td><td>{change}</td></tr>"
        for label, before, after, change in rows(story)
    )
    found = faults(story)
    verdict = "nothing lost, doubled or late" if not found else f"{found} faults"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Nearcast: a city that learns</title>
<style>{_STYLE}</style></head><body>
<h1>A city that learns</h1>
<p>{story.people} people, half of them in cars three times as fast, on {story.nodes} node(s). They
moved for {story.before.seconds:g} s; Spark read the log; the running nodes took the plan and the
policies that came of it; the city moved on for {story.after.seconds:g} s.</p>
<table><tr><th></th><th>before</th><th>after</th><th>change, per event</th></tr>{table}</table>
<p class="{"bad" if found else "good"}">Audit of all nodes' logs: {escape(verdict)}.</p>
<h2>The plan</h2>
<p>{story.leaves} leaves: R leaves over the regions where people are slow, Q leaves over the rest,
the denser the smaller. Each node holds some of them, neighbours together.</p>
{svg}
</body></html>
"""
