"""What all peers of an overlay share, and what each of them limits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from nearcast.config import Configuration
from nearcast.model import Attribute, MisuseError, Space, read_subscription
from nearcast.model.errors import ConfigurationError, EnvironmentProblem, FileFormatError
from nearcast.overlay.bounds import covers
from nearcast.overlay.live.client_boxes import ClientBoxes
from nearcast.server.overlay import Peer, runtime
from nearcast.server.overlay.links import LinkSettings
from nearcast.server.overlay.peer_server import check_configuration, overlay_spaces
from nearcast.server.overlay.runtime import OverlaySpace
from nearcast.server.overlay.spaces import TreeSettings

FIELD = Space(
    name="field",
    topic_filter="field/#",
    attributes=(Attribute.number("x", 0, 100), Attribute.number("y", 0, 100)),
)
SECTION = {
    "name": "field",
    "topics": "field/#",
    "attributes": {"x": {"low": 0, "high": 100}, "y": {"low": 0, "high": 100}},
}
QUICK = TreeSettings(beat_ms=200)


def _configured(**peer: Any) -> OverlaySpace:
    configuration = Configuration.model_validate({"space": [SECTION], "peer": peer})
    [space] = overlay_spaces(configuration)
    return space


def _histogram(directory: Path, counts: list[int], high: float = 100.0) -> Path:
    path = directory / "histogram-field.json"
    content = {
        "format": "nearcast-density",
        "format_version": 1,
        "space": "field",
        "attributes": ["x", "y"],
        "lows": [0.0, 0.0],
        "highs": [high, high],
        "events": sum(counts),
        "kind": "histogram",
        "shape": [2, 2],
        "counts": counts,
    }
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("method", ["exact", "measured", "RS", "LVS", "CES"])
def test_each_way_to_elect_a_host_is_a_setting(method):
    found = _configured(method=method, beat="250ms", cache=7, spread=4)
    settings = found.settings
    assert (settings.method.value, settings.beat_ms, settings.patience_ms) == (method, 250, 875)
    assert (settings.cache_size, settings.spread) == (7, 4)
    others = [_configured(), _configured(method=method), _configured(cache=7)]
    assert found.digest not in [one.digest for one in others]


def test_hosts_are_elected_by_counted_events_if_there_is_a_histogram(tmp_path: Path):
    quarter = (0.0, 0.0), (50.0, 50.0)
    plain = _configured(histograms=str(tmp_path))  # no file for this space
    assert plain.settings.e.expected(quarter) == 0.25
    assert plain.digest == _configured().digest
    _histogram(tmp_path, [97, 1, 1, 1])
    counted = _configured(histograms=str(tmp_path))
    assert counted.settings.e.expected(quarter) == pytest.approx(0.97)
    _histogram(tmp_path, [96, 2, 1, 1])
    assert len({one.digest for one in (plain, counted, _configured(histograms=str(tmp_path)))}) == 3
    _histogram(tmp_path, [97, 1, 1, 1], high=200.0)
    with pytest.raises(FileFormatError, match="as configured"):
        _configured(histograms=str(tmp_path))


async def test_peers_with_other_counts_are_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(runtime, "JOIN_S", 0.0)
    counts = _histogram(tmp_path, [97, 1, 1, 1])
    async with Peer(FIELD, tree=QUICK, histogram=counts) as founder:
        with pytest.raises(EnvironmentProblem, match="declared differently"):
            await Peer(FIELD, tree=QUICK, contact=founder.address).__aenter__()
        async with Peer(FIELD, tree=QUICK, contact=founder.address, histogram=counts) as other:
            await until(lambda: len(other.runtime.links.peers) == 1)


def test_what_a_client_may_publish_must_fit_between_peers():
    sections = {"space": [SECTION], "limits": {"packet": "1MiB"}}
    with pytest.raises(ConfigurationError, match="a client may publish"):
        check_configuration(
            Configuration.model_validate(sections | {"peer": {"message": "512KiB"}})
        )
    check_configuration(Configuration.model_validate(sections | {"peer": {"message": "2MiB"}}))


def test_a_peer_has_no_more_boxes_than_it_may_and_they_cover_all_subscriptions():
    boxes = ClientBoxes(FIELD, most=4, looseness=0.0)
    wanted = []
    for number in range(25):
        low = 4.0 * number
        pair = ("$where", f"x = {low}..{low + 1}")
        boxes.add(number, read_subscription("field/#", [pair]).subscription, None)
        wanted.append(((low, 0.0), (low + 1, 100.0)))
        assert len(boxes.take()) <= 4
    taken = boxes.take()
    assert all(any(covers(box, one) for box in taken) for one in wanted)


async def test_an_event_that_is_too_large_is_refused_where_it_is_published():
    small = LinkSettings(most_frame=1 << 17)
    async with Peer(FIELD, tree=QUICK, links=small) as founder:
        other = Peer(FIELD, tree=QUICK, contact=founder.address, links=small)
        async with other:
            await other.subscribe()
            with pytest.raises(MisuseError, match="an event of"):
                await founder.publish("field/1", _padded(200_000))
            for _ in range(20):  # each fits into a frame, together they do not
                await founder.publish("field/1", _padded(100_000), qos=1)
            async with asyncio.timeout(60):
                for _ in range(20):
                    assert len((await anext(other.events.__aiter__())).payload) > 100_000
        assert founder.runtime.links.counts.refused == 0


async def test_a_peer_that_sends_too_much_at_once_is_cut_off_and_the_rest_goes_on():
    async with Peer(FIELD, tree=QUICK, links=LinkSettings(most_frame=1 << 17)) as founder:
        await founder.subscribe()
        greedy = Peer(FIELD, tree=QUICK, contact=founder.address)
        modest = Peer(FIELD, tree=QUICK, contact=founder.address)
        async with greedy, modest:
            await greedy.publish("field/1", _padded(500_000))
            await until(lambda: founder.runtime.links.counts.refused)
            await modest.publish("field/1", _padded(1), qos=1)
            async with asyncio.timeout(60):
                assert len((await anext(founder.events.__aiter__())).payload) < 1_000


def _padded(size: int) -> str:
    return json.dumps({"x": 1, "y": 1, "text": "x" * size})
