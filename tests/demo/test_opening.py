"""The opening's trials wait for what the nodes decide late, and see what comes too often."""

import asyncio

import pytest

from nearcast.demo.inhabitants import Inhabitant, _ignore
from nearcast.demo.opening import _Crowd
from nearcast.mqtt import Publish

ORDER = Publish("city/orders", b"{}", 1)


class Late(Inhabitant):
    """A publisher whose message arrives a while after it was published."""

    def __init__(self, crowd: _Crowd, names: list[str], after_s: float) -> None:
        self._crowd, self._names, self._after_s = crowd, names, after_s

    def say(self, *messages: Publish) -> None:
        loop = asyncio.get_running_loop()
        for message in messages:
            is_mark = message.topic == "mark"
            for name in list(self._crowd._clients) if is_mark else self._names:
                after_s = 0 if is_mark else self._after_s
                loop.call_later(after_s, self._arrive, name, message.topic)

    def _arrive(self, name: str, topic: str) -> None:
        self._crowd._heard.append((name, topic))
        self._crowd._more.set()


@pytest.mark.parametrize("names", [["ann"], ["ann", "bob"]])
async def test_a_message_that_is_decided_late_counts(names: list[str]):
    crowd = _Crowd()
    crowd._clients = {name: Inhabitant(name, _ignore) for name in ("ann", "bob", "cyd")}
    publisher = Late(crowd, names, after_s=0.5)
    assert await crowd.reached(publisher, ORDER, len(names)) == names


async def test_a_message_that_reaches_nobody_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("nearcast.demo.opening._CONTEST_S", 0.05)
    crowd = _Crowd()
    crowd._clients = {"ann": Inhabitant("ann", _ignore)}
    publisher = Late(crowd, [], after_s=0)
    assert await crowd.reached(publisher, ORDER, 1) == []
