"""`nearcast explain` beside a running broker: over MQTT, and from the log that it is writing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import nearcast, served
from tests.support.space_sections import placed_section
from tests.support.waiting import wait_for
from typer.testing import CliRunner

from nearcast.cli import app
from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model import MisuseError
from nearcast.mqtt import FilterRequest, Properties, Publish

pytestmark = pytest.mark.server

TOML = """
[durability]
mode = "off"
[log]
events = "full"
""" + placed_section("shops", 'positions = "publishers"', price=(0, 100))
BREAD = {"price": 3.0, "lon": 2.35, "lat": 48.85}


class Shop:
    """A broker with two subscribers: bob wants cheap things near him, eve everything."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port

    def explain(self, *arguments: str) -> tuple[int, Any]:
        run = CliRunner().invoke(app, ["explain", *arguments, "--json"])
        assert run.exit_code in (0, 1), run.output
        return run.exit_code, json.loads(run.output)

    def ask(self, client: str, body: dict[str, Any], *more: str) -> tuple[int, Any]:
        payload = json.dumps(body)
        return self.explain(
            client, "-p", str(self.port), "-t", "shops/bakery", "-m", payload, *more
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("explain")
    config = directory / "nearcast.toml"
    config.write_text(TOML)
    options = ("--config", str(config), "--port", "0", "--data", str(directory / "data"))
    with served(*options, cwd=directory) as ports:
        port = ports["tcp"]
        with (
            BlockingClient(BrokerAddress(port=port, client_id="bob")) as bob,
            BlockingClient(BrokerAddress(port=port, client_id="eve")) as eve,
        ):
            bob.publish([Publish("$position", b'{"lon":2.351,"lat":48.851}', qos=1)])
            bob.subscribe(FilterRequest("$where/price<10/$near/500m/shops/#", 1))
            eve.subscribe(FilterRequest("shops/#", 1))
            with BlockingClient(BrokerAddress(port=port, client_id="ann")) as ann:
                ann.publish([Publish("shops/bakery", json.dumps(BREAD).encode(), qos=1)])
            yield Shop(directory, port)


def test_a_broker_says_that_a_message_would_arrive(shop: Shop):
    code, found = shop.ask("bob", BREAD)
    assert (code, found["delivered"]) == (0, True)
    assert all(step["ok"] for step in found["steps"])


@pytest.mark.parametrize(
    ("client", "change", "step", "told"),
    [
        ("bob", {"price": 30.0}, "conditions", "price < 10"),
        ("bob", {"lon": 2.5}, "position", "not within 500 m"),
        ("zoe", {}, "client", "no session"),
    ],
)
def test_a_broker_names_the_step_that_stands_in_the_way(
    shop: Shop, client: str, change: dict[str, Any], step: str, told: str
):
    code, found = shop.ask(client, {**BREAD, **change})
    assert (code, found["delivered"]) == (1, False)
    assert found["steps"][-1]["step"] == step
    assert found["because"].startswith(f"{step}: ")
    assert told in found["because"]


def test_instructions_of_the_message_count(shop: Shop):
    code, found = shop.ask("eve", BREAD, "-D", "$top=1")
    assert (code, found["steps"][-1]["step"]) == (1, "rank")
    assert shop.ask("bob", BREAD, "-D", "$top=1")[0] == 0


def test_asking_sends_nothing(shop: Shop):
    target = BrokerAddress(port=shop.port, client_id="listener")
    with BlockingClient(target) as listener:
        listener.subscribe(FilterRequest("shops/#"))
        shop.ask("listener", BREAD)
        assert list(listener.messages(0.2)) == []


def test_people_get_lines(shop: Shop):
    run = nearcast("explain", "bob", "-p", str(shop.port), "-t", "shops/bakery", "-m", "x")
    assert run.returncode == 1
    assert "yes  topic" in run.stdout
    assert "NO   values" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("bob does not get it: values: no place in space")


def test_the_log_of_the_running_broker_tells_what_became_of_a_message(shop: Shop):
    common = ["--log", str(shop.directory / "data" / "eventlog"), "-t", "shops/bakery"]
    common += ["--config", str(shop.directory / "nearcast.toml")]
    wait_for(lambda: CliRunner().invoke(app, ["explain", "bob", *common]).exit_code == 0)
    code, found = shop.explain("bob", *common)
    assert (code, found["delivered"]) == (0, True)
    assert found["event"]["publisher"] == "ann"
    assert shop.explain("zoe", *common)[0] == 1


def test_a_question_that_is_none_is_told(shop: Shop):
    for arguments, told in (
        (["bob", "-p", str(shop.port)], "no topic"),
        (["bob", "--log", "nowhere"], "no message"),
        (["bob", "-p", str(shop.port), "-t", "a", "-D", "red"], "NAME=VALUE"),
    ):
        run = CliRunner().invoke(app, ["explain", *arguments])
        assert isinstance(run.exception, MisuseError)
        assert told in str(run.exception)


def test_the_answer_goes_to_the_asker_over_plain_mqtt(shop: Shop):
    with BlockingClient(BrokerAddress(port=shop.port, client_id="asker")) as asker:
        asker.subscribe(FilterRequest("my/answers"))
        question = {"client": "eve", "topic": "shops/bakery", "payload": BREAD}
        properties = Properties(response_topic="my/answers", correlation_data=b"7")
        payload = json.dumps(question).encode()
        asker.publish([Publish("$nearcast/explain", payload, qos=1, properties=properties)])
        answer = next(asker.messages(60))
    assert answer.properties.correlation_data == b"7"
    assert json.loads(answer.payload)["delivered"] is True
