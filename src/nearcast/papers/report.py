"""Renders the report: one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nearcast.papers.form import Claim, Figure, ReportTable
from nearcast.papers.page_style import STYLE
from nearcast.papers.texts import STORIES, PaperText, cause_of


@dataclass(frozen=True, slots=True)
class PaperOutcome:
    """The results of one paper."""

    number: int
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    tables: tuple[ReportTable, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of a run; `facts` says how and where it ran."""

    papers: tuple[PaperOutcome, ...]
    facts: Mapping[str, str]

    def verdicts(self) -> dict[str, str]:
        """Return the verdict on each claim over all its readings: holds, in part, does not hold."""
        readings: dict[str, list[bool]] = {}
        for paper in self.papers:
            for claim in paper.claims:
                readings.setdefault(claim.id, [])
                readings[claim.id] += [claim.holds] if claim.counts else []
        return {name: summed(each) for name, each in readings.items()}


def summed(readings: Sequence[bool]) -> str:
    """Return one verdict for several readings.

    >>> summed([True, True]), summed([True, False]), summed([False])
    ('holds', 'in part', 'does not hold')
    """
    if all(readings):
        return "holds"
    return "in part" if any(readings) else "does not hold"


_CLASSES = {"holds": "yes", "in part": "part", "does not hold": "no"}
_MARKS = {"holds": "✓", "in part": "◐", "does not hold": "✗"}


def page(outcome: RunOutcome) -> str:
    """Return the whole page as HTML."""
    sections = "\n".join(_paper(paper) for paper in outcome.papers)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Nearcast: five papers, run again</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>Five papers, run again</h1>
<p class="lead">Nearcast unites five published systems. This page runs every experiment of theirs
anew and says of each claim whether it holds here. All figures and numbers come from one run;
a claim that does not hold is reported as such, with the cause where one was found.</p>
{_summary(outcome)}
</header>
<main>
{sections}
</main>
<footer><h2>This run</h2>{_facts(outcome.facts)}
<p>Every row that was measured is in <code>rows.json</code> beside this page, every verdict in
<code>claims.json</code>. Intervals are 95 % confidence intervals of the mean over seeds.</p>
</footer>
</body>
</html>
"""


def _text(value: object) -> str:
    return html.escape(str(value))


def _anchor(claim: str) -> str:
    return claim.replace(".", "-")


def _chip(verdict: str, before: str = "") -> str:
    text = f"{before} {_MARKS[verdict]} {verdict}".strip()
    return f'<span class="chip {_CLASSES[verdict]}">{_text(text)}</span>'


def _summary(outcome: RunOutcome) -> str:
    verdicts = outcome.verdicts()
    count = {verdict: sum(v == verdict for v in verdicts.values()) for verdict in _CLASSES}
    told = ", ".join(f"{count[verdict]} {name}" for verdict, name in _TOLD.items())
    lines = []
    for paper in outcome.papers:
        names = dict.fromkeys(claim.id for claim in paper.claims)
        chips = " ".join(
            f'<a href="#{_anchor(name)}">{_chip(verdicts[name], name)}</a>' for name in names
        )
        title = f'<a href="#paper-{paper.number}">{_text(STORIES[paper.number].title)}</a>'
        lines.append(f'<tr><th scope="row">{title}</th><td class="chips">{chips}</td></tr>')
    total = f"<p><strong>{len(verdicts)} claims</strong>: {told}.</p>"
    return f'<nav>{total}<table class="summary">{"".join(lines)}</table></nav>'


_TOLD = {"holds": "hold", "in part": "hold in part", "does not hold": "do not hold"}


def _paper(paper: PaperOutcome) -> str:
    story = STORIES[paper.number]
    return f"""<section id="paper-{paper.number}">
<h2><span class="number">Paper {paper.number}</span> {_text(story.title)}</h2>
<p class="question">{_text(story.question)}</p>
<h3>Method</h3><p>{_text(story.method)}</p>
{"".join(_figure(figure) for figure in paper.figures)}
<h3>Claims</h3>{_claims([claim for claim in paper.claims if not claim.reading])}
{_readings(story, paper.claims)}
<h3>What differs, and why</h3><p>{_text(story.setting)}</p>{_causes(story, paper.claims)}
<h3>Beyond the paper</h3><p>{_text(story.beyond)}</p>
{"".join(_table(table) for table in paper.tables)}
</section>"""


def _figure(figure: Figure) -> str:
    data = base64.b64encode(figure.svg).decode("ascii")
    kind = "" if figure.wide else ' class="half"'
    return (
        f'<figure{kind}><img alt="{_text(figure.caption)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{_text(figure.caption)}</figcaption></figure>"
    )


def _claims(claims: Iterable[Claim]) -> str:
    lines, seen = [], set()
    for claim in claims:
        anchor = "" if claim.id in seen else f' id="{_anchor(claim.id)}"'
        seen.add(claim.id)
        lines.append(_claim(claim, anchor))
    heads = "<tr><th>Claim</th><th>The paper says</th><th>Measured</th><th>Verdict</th></tr>"
    body = "".join(lines)
    return f'<table class="claims"><thead>{heads}</thead><tbody>{body}</tbody></table>'


def _claim(claim: Claim, anchor: str) -> str:
    reading = f"{claim.variant} (ours)" if claim.ours else claim.variant
    variant = f'<span class="variant">{_text(reading)}</span>' if reading else ""
    told = f"{_text(claim.interval_of)}: {_interval(claim.low, claim.high)}"
    seeds = f"{len(claim.seeds)} seed{'s' if len(claim.seeds) != 1 else ''}"
    verdict = _chip("holds" if claim.holds else "does not hold")
    return (
        f"<tr{anchor}><td><strong>{_text(claim.id)}</strong>{variant}</td>"
        f"<td>{_text(claim.says)}</td>"
        f'<td>{_text(claim.measured)}<span class="interval">{told} ({seeds})</span></td>'
        f"<td>{verdict}</td></tr>"
    )


def _readings(story: PaperText, claims: Sequence[Claim]) -> str:
    """Return, for each claim that fails, the readings that were tried, with a verdict each."""
    failed = dict.fromkeys(claim.id for claim in claims if claim.counts and not claim.holds)
    lines = []
    for name in failed:
        tried = [claim for claim in claims if claim.id == name and claim.reading]
        lines += [_reading(claim) for claim in tried]
        if not any(claim.holds for claim in tried):
            why = story.beyond_saving.get(name, "")
            told = "No reading that was tried saves it." if tried else "No other reading was found."
            text = f"{told} {why}".strip()
            lines.append(
                f"<tr><td><strong>{_text(name)}</strong></td><td colspan=3>{_text(text)}</td></tr>"
            )
    if not lines:
        return ""
    heads = "<tr><th>Claim</th><th>Read as</th><th>Measured</th><th>Verdict</th></tr>"
    return (
        "<h3>Under which reading a claim holds</h3>"
        f'<table class="claims"><thead>{heads}</thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _reading(claim: Claim) -> str:
    variant = f'<span class="variant">{_text(claim.variant)}</span>' if claim.variant else ""
    told = f"{_text(claim.interval_of)}: {_interval(claim.low, claim.high)}"
    verdict = _chip("holds" if claim.holds else "does not hold")
    return (
        f"<tr><td><strong>{_text(claim.id)}</strong>{variant}</td>"
        f"<td>{_text(claim.reading)}</td>"
        f'<td>{_text(claim.measured)}<span class="interval">{told}</span></td>'
        f"<td>{verdict}</td></tr>"
    )


def _interval(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "no interval from one seed"
    digits = max(2, 1 - math.floor(math.log10(high - low))) if high > low else 3
    return f"{low:.{digits}f} to {high:.{digits}f}" if digits < 7 else f"{low:.4g} to {high:.4g}"


def _causes(story: PaperText, claims: Iterable[Claim]) -> str:
    items = []
    for claim in claims:
        text = "" if claim.reading else cause_of(story, claim)
        if not text:
            continue
        name = f"{claim.id}, {claim.variant}" if claim.variant else claim.id
        verdict = "holds" if claim.holds else "does not hold"
        items.append(
            f'<dt>{_text(name)} <span class="{_CLASSES[verdict]}-text">{verdict}</span></dt>'
            f"<dd>{_text(text)}</dd>"
        )
    return f"<dl>{''.join(items)}</dl>" if items else ""


def _table(table: ReportTable) -> str:
    heads = "".join(f"<th>{_text(each)}</th>" for each in table.headings)
    lines = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in line)}</tr>" for line in table.lines
    )
    return (
        f'<table class="more"><caption>{_text(table.caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _facts(facts: Mapping[str, str]) -> str:
    lines = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_text(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table class="facts">{lines}</table>'
