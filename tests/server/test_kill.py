"""`kill -9` under load: what was acknowledged arrives, and at QoS 2 arrives once."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest
from hypothesis import settings
from tests.support.talkers import (
    Talker,
    check_received,
    receive_all,
    send_to_absent,
    talk,
    talk_to_the_end,
    talk_under_load,
)

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
        talk_under_load(talkers, sender, rng.uniform(0.05, 0.5))
        os.kill(broker.pid, signal.SIGKILL)
        talk(talkers, 0.2, publishes=True, until=lambda: False)
        for talker in talkers:
            talker.close()
        broker.end(signal.SIGKILL)
        broker.start()
        for talker in talkers:
            talker.connect(broker.port)
    talk_to_the_end(talkers, sender, [receiver])
    assert len(sender.acknowledged) > 50 * kills
    check_received(sender, receiver)


def test_an_orderly_end_keeps_everything_too(start_broker: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    sender = Talker("sender", ProtocolVersion.V5, 2)
    receiver = Talker("receiver", ProtocolVersion.V5, 2)
    send_to_absent(broker.port, sender, receiver, 50)
    assert broker.end(signal.SIGTERM) == ""
    broker.start()
    receive_all(broker.port, receiver, 50)
    sender.close()


def test_two_brokers_cannot_share_a_directory(start_broker: Any) -> None:
    broker = start_broker(durability={"mode": "process"})
    twin = type(broker)(broker.directory, durability={"mode": "process"})

    with pytest.raises(RuntimeError, match="in use by another broker"):
        twin.start()
