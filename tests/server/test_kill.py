"""`kill -9` under load: what was acknowledged arrives, and at QoS 2 arrives once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from tests.support.talkers import WAIT_S, Talker, talk

from nearcast.mqtt import ProtocolVersion

pytestmark = pytest.mark.server

IS_SOAK = settings.default is not None and settings.default.max_examples > 50


@pytest.mark.parametrize(
    ("version", "mode", "kills"),
    [
        (ProtocolVersion.V5, "process", 3),
        (ProtocolVersion.V311, "process", 1),
        (ProtocolVersion.V5, "power", 1),
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_and_exactly_once_is_once(
    start_broker: Any, version: ProtocolVersion, mode: str, kills: int, qos: int
) -> None:
    kills = 50 if IS_SOAK else kills
    rng = random.Random(f"{version}{mode}{qos}")
    broker = start_broker(durability={"mode": mode})
    sender, receiver = Talker("sender", version, qos), Talker("receiver", version, qos)
    talkers = [sender, receiver]
    for talker in talkers:
        talker.connect(broker.port)
    receiver.subscribe()
    for _ in range(kills):
        enough = len(sender.acknowledged) + 60
        talk(
            talkers,
            rng.uniform(0.05, 0.5),
            publishes=True,
            until=lambda: False,
            at_least=lambda: len(sender.acknowledged) >= enough,  # noqa: B023 - used right here
        )
        os.kill(broker.pid, signal.SIGKILL)
        talk(talkers, 0.2, publishes=True, until=lambda: False)
        for talker in talkers:
            talker.close()
        broker.end(signal.SIGKILL)
        broker.start()
        for talker in talkers:
            talker.connect(broker.port)
    talk(talkers, 0.2, publishes=True, until=lambda: False)
    talk(
        talkers,
        WAIT_S,
        publishes=False,
        until=lambda: not sender.open and set(receiver.inbox) >= sender.acknowledged,
    )
    talk(talkers, 0.3, publishes=False, until=lambda: False)
    for talker in talkers:
        talker.close()

    times = Counter(receiver.inbox)
    assert len(sender.acknowledged) > 50 * kills
    assert sender.acknowledged - set(times) == set()
    if qos == 2:
        assert [number for number, count in times.items() if count > 1] == []
        assert receiver.inbox == sorted(receiver.inbox)


def test_an_orderly_end_keeps_everything_too(start_broker: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    receiver = Talker("receiver", ProtocolVersion.V5, 2)
    receiver.connect(broker.port)
    receiver.subscribe()
    receiver.close()
    sender = Talker("sender", ProtocolVersion.V5, 2)
    sender.connect(broker.port)
    sender.publish_some(50)
    talk([sender], WAIT_S, publishes=False, until=lambda: not sender.open)
    assert broker.end(signal.SIGTERM) == ""
    broker.start()
    receiver.connect(broker.port)
    talk([receiver], WAIT_S, publishes=False, until=lambda: len(receiver.inbox) == 50)
    receiver.close()
    sender.close()

    assert receiver.inbox == list(range(50))


def test_two_brokers_cannot_share_a_directory(start_broker: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    twin = type(broker)(broker.directory, durability={"mode": "process"})

    with pytest.raises(RuntimeError, match="in use by another broker"):
        twin.start()
