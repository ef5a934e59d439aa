"""The page: every claim with a verdict, causes that agree with it, and nothing from elsewhere."""

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest

from nearcast.papers import Claim, Figure, ReportTable, RunOutcome, page
from nearcast.papers.report import PaperOutcome, _interval
from nearcast.papers.texts import STORIES, Cause, PaperText, cause_of

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="1" height="1"/></svg>'


def claim(name: str, variant: str = "", *, holds: bool = True) -> Claim:
    return Claim(
        name,
        variant,
        "it is < 5 & so on",
        "it is 4.2",
        "ratio",
        4.1,
        4.3,
        holds,
        (1, 2),
        {"n": [5]},
    )


def outcome(*claims: Claim) -> RunOutcome:
    papers: dict[int, list[Claim]] = {}
    for one in claims:
        papers.setdefault(int(one.id[1]), []).append(one)
    table = ReportTable("more", ("what", "ours"), (("<b>", "1"),))
    return RunOutcome(
        tuple(
            PaperOutcome(number, tuple(some), (Figure("f", "a picture", SVG),), (table,))
            for number, some in papers.items()
        ),
        {"mode": "quick"},
    )


class Reader(HTMLParser):
    """Collects tags that fetch or link, ids, and rows of text; checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.rows: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets += [str(found[name]) for name in ("src", "href") if name in found]
        self.ids += [str(found["id"])] if "id" in found else []
        assert tag not in {"script", "link", "iframe", "object"}
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.rows[-1] += f" {data}"


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


ALL = [claim(f"C{paper}.{n}", holds=n % 2 == 0) for paper in range(5) for n in (1, 2)]


def test_every_claim_stands_in_a_row_with_its_verdict():
    rows = read(page(outcome(*ALL))).rows
    for one in ALL:
        word = "✓ holds" if one.holds else "✗ does not hold"
        assert any(one.id in row and word in row and "it is 4.2" in row for row in rows)


def test_the_page_asks_for_nothing_that_is_not_in_it():
    text = page(outcome(*ALL))
    reader = read(text)
    inside = {f"#{name}" for name in reader.ids}
    for target in reader.targets:
        assert target.startswith("data:image/svg+xml;base64,") or target in inside
    assert not re.search(r"https?:|@import|url\(", text)


def test_text_is_escaped():
    text = page(outcome(*ALL))
    assert "it is &lt; 5 &amp; so on" in text
    assert "&lt;b&gt;" in text


def test_readings_of_one_claim_are_summed_up():
    found = outcome(
        claim("C0.1", "a"),
        claim("C0.1", "b", holds=False),
        claim("C0.2"),
        claim("C0.3", holds=False),
    )
    assert found.verdicts() == {"C0.1": "in part", "C0.2": "holds", "C0.3": "does not hold"}
    text = page(found)
    assert "<strong>3 claims</strong>: 1 hold, 1 hold in part, 1 do not hold." in text


def test_what_is_ours_does_not_count_in_the_verdict_on_the_paper():
    found = outcome(claim("C1.2", "walk", holds=False), replace(claim("C1.2", "merge"), ours=True))
    assert found.verdicts() == {"C1.2": "does not hold"}
    assert "merge (ours)" in page(found)


def test_ids_are_unique_so_that_links_lead_somewhere():
    ids = read(page(outcome(claim("C0.1", "a"), claim("C0.1", "b"), *ALL[2:]))).ids
    assert len(ids) == len(set(ids))


# --- causes ---------------------------------------------------------------------------------------

STORY = PaperText(
    "t", "q", "m", "s", "b", {("C0.1", ""): Cause(holds=False, text="because of the tree")}
)


def test_a_cause_is_told_with_the_verdict_it_was_found_for():
    assert cause_of(STORY, claim("C0.1", holds=False)) == "because of the tree"


def test_a_verdict_that_has_turned_is_called_unexplained():
    text = cause_of(STORY, claim("C0.1", holds=True))
    assert "the claim does hold" in text
    assert "because of the tree" not in text


def test_a_claim_that_falls_without_a_known_cause_says_so_and_one_that_holds_needs_none():
    assert cause_of(STORY, claim("C0.2", holds=False)) == "No cause has been found yet."
    assert cause_of(STORY, claim("C0.2", holds=True)) == ""


@pytest.mark.parametrize("number", range(5))
def test_the_page_never_tells_a_cause_of_the_other_verdict(number: int):
    story = STORIES[number]
    for (name, variant), known in story.causes.items():
        turned = page(outcome(claim(name, variant, holds=not known.holds)))
        agreeing = page(outcome(claim(name, variant, holds=known.holds)))
        text = escape(known.text)
        assert text not in turned
        assert "Unexplained" in turned
        assert text in agreeing
        assert "Unexplained" not in agreeing


@pytest.mark.parametrize("number", range(5))
def test_methods_are_told_in_few_sentences(number: int):
    sentences = re.findall(r"\S\.(?: |$)", STORIES[number].method)
    assert len(sentences) == 3


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.47, 0.51, "0.470 to 0.510"),
        (1.0, 1.0, "1.000 to 1.000"),
        (0.479512, 0.479513, "0.4795 to 0.4795"),
        (-3.0, 40.0, "-3.00 to 40.00"),
        (float("nan"), 1.0, "no interval from one seed"),
    ],
)
def test_intervals_are_printed_with_as_many_digits_as_they_are_wide(
    low: float, high: float, text: str
):
    assert _interval(low, high) == text


def test_one_seed_is_not_called_seeds():
    text = page(outcome(replace(claim("C0.1"), seeds=(1,))))
    assert "(1 seed)" in text


def reading(name: str, text: str, *, holds: bool) -> Claim:
    return replace(claim(name, holds=holds), reading=text)


def test_a_reading_does_not_change_the_verdict_and_stands_beside_it():
    run = outcome(claim("C3.3", holds=False), reading("C3.3", "the literal climb", holds=True))
    assert run.verdicts() == {"C3.3": "does not hold"}
    text = page(run)
    assert "Under which reading a claim holds" in text
    assert "the literal climb" in text
    assert "No reading" not in text


def test_a_claim_that_no_reading_saves_says_so():
    tried = outcome(claim("C3.1", holds=False), reading("C3.1", "another", holds=False))
    assert "No reading that was tried saves it." in page(tried)
    assert "No other reading was found." in page(outcome(claim("C3.1", holds=False)))


def test_readings_of_a_claim_that_holds_are_not_shown():
    text = page(outcome(claim("C3.3"), reading("C3.3", "the literal climb", holds=False)))
    assert "Under which reading" not in text


def test_every_reading_is_in_the_records():
    assert reading("C3.3", "the literal climb", holds=True).record()["reading"] == (
        "the literal climb"
    )
