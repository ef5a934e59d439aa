"""The report of `ingest` as a page: one file, no script, nothing from elsewhere."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby

from nearcast.pipeline.jobs.quality import COVERAGE_SIDE, Quality

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; color: #1c2733 }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5rem }
td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #dde3ea; vertical-align: top }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
h2 { font-size: 1.05rem; margin: 0 0 .3rem } .warning td { color: #a3320b }
"""
_TITLES = {
    "rows": "Rows", "dropped": "Dropped", "sample": "Dropped rows, some of each kind",
    "times": "Times, as a sample of the input has them", "span": "From and to", "users": "Users",
    "gaps": "Gaps", "speed": "Speeds", "warning": "To look at",
}  # fmt: skip
_PIXELS = 10


def page_of(quality: Quality, title: str) -> str:
    """Return the page as HTML."""
    parts = [_section(name, list(rows)) for name, rows in groupby(quality.rows, lambda r: r[0])]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(parts)}{_map(quality)}</body></html>"
    )


def _section(name: str, rows: list[tuple[str, str, str, int | None]]) -> str:
    cells = "".join(
        f"<tr><td>{escape(what)}</td><td>{escape(value)}</td>"
        f'<td class="n">{"" if count is None else f"{count:,}"}</td></tr>'
        for _, what, value, count in rows
    )
    return f'<h2>{escape(_TITLES.get(name, name))}</h2><table class="{name}">{cells}</table>'


def _map(quality: Quality) -> str:
    """Return the coverage as a picture: the darker, the more positions; north is up."""
    if quality.bounds is None or not quality.coverage:
        return ""
    most = math.log1p(max(quality.coverage.values()))
    side = COVERAGE_SIDE * _PIXELS
    squares = "".join(
        f'<rect x="{x * _PIXELS}" y="{side - (y + 1) * _PIXELS}" width="{_PIXELS}" '
        f'height="{_PIXELS}" fill="#0b5394" fill-opacity="{math.log1p(count) / most:.2f}"/>'
        for (x, y), count in sorted(quality.coverage.items())
    )
    west, south, east, north = quality.bounds
    where = f"{west:.4f} to {east:.4f} east, {south:.4f} to {north:.4f} north"
    return (
        f'<h2>Where the positions lie</h2><p>{where}</p><svg viewBox="0 0 {side} {side}" '
        f'width="{side}" role="img" aria-label="{where}">{squares}</svg>'
    )
