"""News of gaps: who is told of which, how often, and what does not pass the wire."""

from __future__ import annotations

from random import Random

import pytest

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay import Extent
from nearcast.overlay.live import gap_news
from nearcast.overlay.live.gap_news import GapNews, GapReport, decode_gaps, encode_gaps
from nearcast.overlay.seat import Gap

BOX = ((1.0,), (2.0,))
EXTENTS = {3: Extent((0.0,), (10.0,))}


def _news() -> GapNews:
    return GapNews(Random(1), keep_ms=10_000, pause_ms=250)


def test_each_neighbour_is_told_twice_with_the_age_of_the_gap():
    news = _news()
    news.begin(Gap(BOX, 400), 1_000)
    assert news.wake_at() == 1_000
    [(peer, [first])] = news.take(["a"], 1_000)
    assert (peer, first.box, first.age_ms) == ("a", BOX, 600)
    told = news.take(["a", "b"], 2_000)
    assert [(peer, [one.age_ms for one in reports]) for peer, reports in told] == [
        ("a", [1_600]),
        ("b", [1_600]),
    ]
    assert [peer for peer, _ in news.take(["a", "b"], 3_000)] == ["b"]
    assert news.take(["a", "b"], 4_000) == []


def test_a_gap_is_passed_on_but_not_back_and_is_new_once():
    news = _news()
    report = GapReport(b"8 bytes.", BOX, 500)
    assert news.heard("a", [report], 2_000) == [Gap(BOX, 1_500)]
    assert news.heard("b", [report], 2_100) == []
    assert [peer for peer, _ in news.take(["a", "b", "c"], 2_000)] == ["c"]


def test_a_gap_whose_beginning_is_not_known_stays_unknown():
    news = _news()
    assert news.heard("a", [GapReport(b"8 bytes.", BOX, None)], 2_000) == [Gap(BOX, None)]
    [(_, [report])] = news.take(["b"], 2_000)
    assert report.age_ms is None


@pytest.mark.parametrize(("age_ms", "since"), [(500, 1_480), (None, None)])
def test_very_many_gaps_are_one_for_the_publisher(age_ms, since):
    reports = [
        GapReport(b"%8d" % number, ((float(number),), (number + 1.0,)), 500 + number)
        for number in range(20)
    ]
    reports.append(GapReport(b"8 bytes.", ((3.0,), (4.0,)), None if age_ms is None else 520))
    news = _news()
    assert news.heard("a", reports, 2_000) == [Gap(((0.0,), (20.0,)), since)]
    assert len(news) == 21


def test_whoever_was_lost_is_told_again():
    news = _news()
    news.begin(Gap(BOX, 0), 0)
    news.take(["a"], 0)
    news.take(["a"], 1_000)
    news.lost("a")
    assert len(news.take(["a"], 2_000)) == 1


def test_news_that_comes_fast_waits_for_more_of_it():
    news = _news()
    news.begin(Gap(BOX, 0), 0)
    news.take(["a"], 0)
    assert news.wake_at() is None  # the second time is at the next heartbeat
    news.begin(Gap(BOX, 0), 10)
    news.begin(Gap(BOX, 0), 20)
    assert news.wake_at() == 250
    [(_, reports)] = news.take(["a"], 250)
    assert len(reports) == 3


def test_gaps_are_forgotten_when_their_time_is_over_or_there_are_too_many(monkeypatch):
    news = _news()
    news.begin(Gap(BOX, 0), 0)
    assert (news.take(["a"], 10_000), len(news)) == ([], 0)
    monkeypatch.setattr(gap_news, "MOST_GAPS", 3)
    for number in range(5):
        news.begin(Gap(((float(number),), (9.0,)), 0), 0)
    [(_, reports)] = news.take(["a"], 1)
    assert [one.box[0][0] for one in reports] == [2.0, 3.0, 4.0]


def test_news_is_written_and_read():
    reports = [GapReport(b"8 bytes.", BOX, 0), GapReport(b"8 bytes,", BOX, None)]
    assert decode_gaps(encode_gaps(3, reports), EXTENTS) == (3, reports)


@pytest.mark.parametrize(
    "report",
    [
        GapReport(b"short", BOX, 0),
        GapReport(b"8 bytes.", ((2.0,), (1.0,)), 0),
        GapReport(b"8 bytes.", ((1.0, 1.0), (2.0, 2.0)), 0),
        GapReport(b"8 bytes.", ((float("nan"),), (1.0,)), 0),
        GapReport(b"8 bytes.", BOX, -1),
        GapReport(b"8 bytes.", BOX, 2**40),
    ],
)
def test_news_that_makes_no_sense_is_refused(report):
    with pytest.raises(PeerProtocolError):
        decode_gaps(encode_gaps(3, [report]), EXTENTS)


def test_damaged_news_and_too_much_of_it_is_refused():
    report = GapReport(b"8 bytes.", BOX, 0)
    good = encode_gaps(3, [report])
    for damaged in (
        b"",
        b"\3",
        b"\4" + good[1:],
        good[:-1],
        good + b"\0",
        encode_gaps(3, [report] * (gap_news.MOST_GAPS + 1)),
    ):
        with pytest.raises(PeerProtocolError):
            decode_gaps(damaged, EXTENTS)
