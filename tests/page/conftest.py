"""A broker with a page, a few clients, and a real browser: one of each for all tests of a file."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.http.conftest import PASSWORD, SHOPS
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

from nearcast.server.http.operators import set_operator

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BAKERY = (-122.4075, 37.7874)


class PageTown:
    """A broker with the operator ann and the viewer vic, and MQTT clients with places."""

    def __init__(self, directory: Path, **http: Any) -> None:
        operators = directory / "operators.txt"
        set_operator(operators, "ann", "operator", PASSWORD.encode())
        set_operator(operators, "vic", "viewer", PASSWORD.encode())
        http = {"address": "127.0.0.1:0", "operators": str(operators), **http}
        listeners = [{"kind": "tcp", "port": 0}]
        self.broker = BrokerProcess(directory, http=http, space=[SHOPS], listener=listeners)
        self.broker.start()
        self.broker.sections["http"] = {**http, "address": f"127.0.0.1:{self.http_port}"}
        self.clients: dict[str, Client] = {}
        self.ended: list[str] = []

    @property
    def http_port(self) -> int:
        return self.broker.ports["http"]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/"

    def come(
        self,
        name: str,
        place: tuple[float, float] | None = None,
        *filters: str,
        label: str = "",
    ) -> Client:
        """Connect a client that may have a place, and subscribes."""
        client = self.clients[name] = Client(
            CallbackAPIVersion.VERSION2, name, protocol=MQTTv5, reconnect_on_failure=False
        )
        answered: list[Any] = []
        client.on_subscribe = lambda *given: answered.append(given)
        client.on_disconnect = lambda *_: self.ended.append(name)
        client.connect("127.0.0.1", self.broker.port)
        client.loop_start()
        wait_for(client.is_connected)
        if place is not None:
            text = json.dumps({"lon": place[0], "lat": place[1]})
            client.publish("$position", text, qos=1).wait_for_publish(10)
        wanted = Properties(PacketTypes.SUBSCRIBE)
        if label:
            wanted.UserProperty = ("$label", label)
        for topic_filter in filters:
            client.subscribe(topic_filter, qos=1, properties=wanted)
        wait_for(lambda: len(answered) == len(filters))
        return client

    def publish(self, topic: str, place: tuple[float, float] = BAKERY, **values: Any) -> None:
        client = self.clients.get("baker") or self.come("baker")
        given = {"lon": place[0], "lat": place[1], "price": 3, "kind": "food", **values}
        client.publish(topic, json.dumps(given), qos=1).wait_for_publish(10)

    def leave(self, name: str) -> None:
        client = self.clients.pop(name)
        client.disconnect()
        client.loop_stop()
        for one in (client._sockpairR, client._sockpairW):  # it leaves them open
            if one is not None:
                one.close()

    def end(self) -> None:
        for name in list(self.clients):
            self.leave(name)
        self.broker.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageTown]:
    one = PageTown(tmp_path_factory.mktemp("town"))
    yield one
    one.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, town: PageTown) -> Iterator[Callable[..., Page]]:
    """Return what opens the page, logged in as `user`; the page may say nothing on the console.

    The page is that of the town that all tests of the file share, or of another one.
    """
    opened = []
    said: list[str] = []

    def open_(
        user: str | None = "ann",
        route: str = "map",
        *,
        width: int = 1400,
        quiet: bool = True,
        of: PageTown | None = None,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 844})
        opened.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("pageerror", lambda error: said.append(str(error)))
        if quiet:
            page.on("console", lambda line: said.extend([line.text][: line.type == "error"]))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        page.goto(f"{(of or town).address}#/{route}")
        if user is not None:
            log_in(page, user)
        return page

    yield open_
    for context in opened:
        context.close()
    assert said == []


def log_in(page: Page, user: str, password: str = PASSWORD) -> None:
    page.get_by_label("Name", exact=True).fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.locator(".live", has_text="Live").wait_for()
