"""`nearcast explain`: from an event log, and of a running broker."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.cli.explain_log import explain_from_log, find_event, held, opened
from nearcast.config import Configuration
from nearcast.eventlog import LOG_TABLES
from nearcast.model import EnvironmentProblem, UnknownNameError

SPACE: dict[str, Any] = {
    "name": "shops",
    "topics": "shops/#",
    "longitude": "lon",
    "latitude": "lat",
    "attributes": {
        "price": {"low": 0.0, "high": 100.0, "path": "offer.price"},
        "kind": {"categories": ["food", "tools"]},
        "lon": {"low": -180.0, "high": 180.0},
        "lat": {"low": -90.0, "high": 90.0},
    },
}
CONFIGURATION = Configuration.model_validate({"space": [SPACE]})
BREAD = {"offer": {"price": 3.0}, "kind": "food", "lon": 2.35, "lat": 48.85}
TOML = """
[[space]]
name = "shops"
topics = "shops/#"
longitude = "lon"
latitude = "lat"
[space.attributes]
price = { low = 0, high = 100, path = "offer.price" }
kind = { categories = ["food", "tools"] }
lon = { low = -180, high = 180 }
lat = { low = -90, high = 90 }
"""


class Log:
    """Writes the tables of an event log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in LOG_TABLES}
        self.next = 1

    def _note(self, table: str, **row: Any) -> int:
        number = self.next
        self.next += 1
        self.rows[table].append({"node": "n1", "sequence": number, "t": 1_000 * number, **row})
        return number

    def subscribe(self, client: str, text: str, *, added: bool = True) -> None:
        flags = {"added": added, "no_local": False, "restored": False}
        self._note("subscriptions", client=client, filter=text, qos=0, **flags)

    def move(self, client: str, lon: float, lat: float) -> None:
        self._note("positions", client=client, lon=lon, lat=lat)

    def publish(self, body: object, *receivers: str, topic: str = "shops/bakery") -> int:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        event = {"publisher": "ann", "topic": topic, "qos": 0, "retain": False, "payload": payload}
        number = self._note("events", **event, limited=False, way="client")
        self.rows["deliveries"] += (
            {"node": "n1", "sequence": number, "receiver": each, "qos": 0} for each in receivers
        )
        return number

    def close(self) -> None:
        for name, rows in self.rows.items():
            if rows:
                (self.directory / name).mkdir(parents=True)
                table = pa.Table.from_pylist(rows, LOG_TABLES[name])
                pq.write_table(table, self.directory / name / "part-n1-00000001.parquet")

    def explain(self, client: str, number: int) -> Any:
        with opened(self.directory) as folder:
            event = find_event(folder, number, None)
            return explain_from_log(folder, CONFIGURATION, client, event)


def outcome(found: Any) -> list[tuple[str, bool | None]]:
    return [(step.step, step.ok) for step in found.steps]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "eventlog")


def test_a_message_that_was_handed_over_is_explained_step_by_step(log: Log):
    log.subscribe("bob", "$where/price<10;kind=food/$near/500m/shops/#")
    log.move("bob", 2.5, 48.9)
    log.move("bob", 2.351, 48.851)
    number = log.publish(BREAD, "bob", "eve")
    log.close()
    found = log.explain("bob", number)
    assert found.delivered is True
    assert outcome(found) == [
        ("topic", True),
        ("space", True),
        ("condition", True),
        ("condition", True),
        ("position", True),
        ("selection", True),
        ("delivery", True),
    ]
    texts = [step.detail for step in found.steps]
    assert texts[1] == "space shops: price 3, kind food, lon 2.35, lat 48.85"
    assert texts[2] == "price < 10: price is 3"
    assert texts[3] == 'kind = "food": kind is food'
    assert "133 m away, wants within 500 m" in texts[4]
    assert texts[6] == "it was handed to bob; 1 other client(s) got it"


@pytest.mark.parametrize(
    ("text", "failed", "told"),
    [
        ("$where/price<3/shops/#", ["condition", "selection"], "price < 3: price is 3"),
        (
            "$where/price<5;kind=tools/shops/#",
            ["condition", "selection"],
            'kind = "tools": kind is food',
        ),
        ("$area/3,48,4,49/shops/#", ["area", "selection"], "the event is outside bbox(3,48,4,49)"),
        ("$near/100m/shops/#", ["position", "selection"], "wants within 100 m"),
        ("tools/#", ["topic"], "no subscription of bob matches shops/bakery: it held tools/#"),
    ],
)
def test_the_step_that_stood_in_the_way_is_named(log: Log, text, failed, told):
    log.subscribe("bob", text)
    log.move("bob", 2.351, 48.851)
    number = log.publish(BREAD)
    log.close()
    found = log.explain("bob", number)
    assert found.delivered is False
    assert [step for step, ok in outcome(found) if ok is False] == [*failed, "delivery"]
    assert told in found.because


def test_what_happened_after_the_message_does_not_count(log: Log):
    log.subscribe("bob", "$near/500m/shops/#")
    number = log.publish(BREAD)
    log.move("bob", 2.35, 48.85)
    log.close()
    found = log.explain("bob", number)
    assert ("position", False) in outcome(found)
    assert any("the position of bob was not known" in step.detail for step in found.steps)


def test_who_had_unsubscribed_held_nothing(log: Log):
    log.subscribe("bob", "shops/#")
    log.subscribe("bob", "shops/#", added=False)
    log.subscribe("eve", "shops/#")
    number = log.publish(BREAD, "eve")
    log.close()
    found = log.explain("bob", number)
    assert "it held no subscription" in found.steps[0].detail
    assert log.explain("eve", number).delivered is True


def test_a_message_that_fits_and_was_not_handed_over_names_what_the_log_cannot_tell(log: Log):
    log.subscribe("bob", "$where/price<1/shops/#")
    log.subscribe("bob", "$share/g/$where/price<5/shops/#")
    number = log.publish(BREAD, "eve")
    log.close()
    found = log.explain("bob", number)
    assert ("selection", True) in outcome(found)
    assert found.because.startswith("delivery: it was not handed to bob")
    assert outcome(found)[-1] == ("delivery", False)
    assert "$top chose others" in found.steps[-1].detail
    assert "share group" in found.steps[-1].detail


def test_a_payload_without_a_place_in_the_space_reaches_plain_subscriptions_only(log: Log):
    log.subscribe("bob", "$near/500m/shops/#")
    log.subscribe("bob", "shops/#")
    number = log.publish(b"no JSON", "bob")
    log.close()
    found = log.explain("bob", number)
    assert outcome(found) == [
        ("topic", True),
        ("space", False),
        ("selection", False),
        ("selection", True),
        ("delivery", True),
    ]


def test_values_in_user_properties_are_not_in_the_log(log: Log):
    space = {**SPACE, "values": "properties"}
    log.subscribe("bob", "$where/price<5/shops/#")
    number = log.publish(b"", "bob")
    log.close()
    with opened(log.directory) as folder:
        event = find_event(folder, number, None)
        found = explain_from_log(
            folder, Configuration.model_validate({"space": [space]}), "bob", event
        )
    assert outcome(found) == [
        ("topic", True),
        ("space", None),
        ("selection", None),
        ("delivery", True),
    ]


def test_topics_of_no_space_need_no_selection(log: Log):
    log.subscribe("bob", "home/#")
    number = log.publish(b"21", "bob", topic="home/temperature")
    log.close()
    found = log.explain("bob", number)
    assert outcome(found) == [
        ("topic", True),
        ("space", True),
        ("selection", True),
        ("delivery", True),
    ]


def test_the_last_message_of_a_topic_is_found(log: Log):
    log.publish(BREAD)
    last = log.publish({**BREAD, "lon": 3.0})
    log.publish(BREAD, topic="shops/other")
    log.close()
    with opened(log.directory) as folder:
        assert find_event(folder, None, "shops/bakery")["sequence"] == last


def test_a_message_that_was_left_out_of_the_log_is_told(log: Log):
    log.publish(BREAD)
    gap = {"node": "n1", "sequence": 5, "count": 3, "reason": "sampled"}
    log.rows["gaps"].append(gap)
    log.close()
    with opened(log.directory) as folder:
        for number in (5, 7):
            told = rf"event {number} was left out of the log \(sampled\)"
            with pytest.raises(UnknownNameError, match=told):
                find_event(folder, number, None)
        for number in (4, 8):
            with pytest.raises(UnknownNameError, match=f"no event {number}"):
                find_event(folder, number, None)
        with pytest.raises(UnknownNameError, match="no event on nowhere"):
            find_event(folder, None, "nowhere")


def test_a_log_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(EnvironmentProblem, match="no such directory"), opened(tmp_path / "nowhere"):
        pass


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12))
def test_held_is_what_was_added_and_not_removed_since(changes: list[tuple[str, bool]]):
    expected = {
        text for text in "abc" if [added for each, added in changes if each == text][-1:] == [True]
    }
    rows = [{"filter": text, "added": added} for text, added in changes]
    assert set(held(rows)) == expected
    assert len(held(rows)) == len(expected)


def test_the_command_prints_steps_or_json_and_answers_by_its_exit_code(log: Log, tmp_path: Path):
    log.subscribe("bob", "$where/price<5/shops/#")
    log.publish(BREAD, "bob")
    log.close()
    config = tmp_path / "nearcast.toml"
    config.write_text(TOML)
    common = ["--log", str(log.directory), "--topic", "shops/bakery", "--config", str(config)]
    run = CliRunner().invoke(app, ["explain", "bob", *common])
    assert run.exit_code == 0, run.output
    assert "yes  condition   price < 5: price is 3" in run.output
    assert "bob gets it: delivery: it was handed to bob" in run.output
    run = CliRunner().invoke(app, ["explain", "eve", *common, "--json"])
    assert run.exit_code == 1
    found = json.loads(run.output)
    assert (found["client"], found["delivered"]) == ("eve", False)
    assert found["topic"] == "shops/bakery"
    assert [step["step"] for step in found["steps"]] == ["topic", "delivery"]
    assert found["because"].startswith("topic: no subscription of eve matches shops/bakery")
