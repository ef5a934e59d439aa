"""Wills: section 3.1.2.5 and 3.1.3.2."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.mqtt import Disconnect, Properties, ProtocolVersion, Will

V311, V5 = ProtocolVersion.V311, ProtocolVersion.V5
both = pytest.mark.parametrize("version", [V311, V5])


def listener(world: Any) -> Any:
    client = world.welcome("listener")
    client.subscribe("w", 2)
    client.take()
    return client


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_client_has_its_will(world: Any, version: ProtocolVersion, qos: int) -> None:
    heir = listener(world)
    world.welcome("c", version, will=Will("w", b"gone", qos, True)).lose()

    (message,) = heir.publications()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
    assert world.node.state.retained.get("w").payload == b"gone"


@both
def test_a_polite_leave_withdraws_the_will(world: Any, version: ProtocolVersion) -> None:
    heir = listener(world)
    world.welcome("c", version, will=Will("w", b"gone")).send(Disconnect())

    assert heir.payloads() == []


def test_a_client_may_leave_and_have_its_will(world: Any) -> None:
    heir = listener(world)
    world.welcome("c", will=Will("w", b"gone")).send(Disconnect(0x04))

    assert heir.payloads() == [b"gone"]


def test_a_breach_of_the_protocol_and_silence_both_execute_the_will(world: Any) -> None:
    heir = listener(world)
    world.welcome("c", will=Will("w", b"breach")).send_bytes(b"\xc0\x01\x00")
    world.welcome("d", keep_alive_s=10, will=Will("w", b"silence"))
    world.wait(15_000)

    assert heir.payloads() == [b"breach", b"silence"]


def delayed(delay_s: int) -> Will:
    return Will("w", b"gone", 1, properties=Properties(will_delay_interval=delay_s))


def test_a_will_waits_for_its_delay(world: Any) -> None:
    heir = listener(world)
    world.welcome("c", will=delayed(5), props={"session_expiry_interval": 60}).lose()
    world.wait(4_999)
    assert heir.payloads() == []
    world.wait(1)

    assert heir.payloads() == [b"gone"]
    world.wait(100_000)
    assert heir.payloads() == []


def test_a_client_that_returns_in_time_has_no_will(world: Any) -> None:
    heir = listener(world)
    props = {"session_expiry_interval": 60}
    world.welcome("c", will=delayed(5), props=props).lose()
    world.wait(4_000)
    world.client("c", clean_start=False, props=props)
    world.wait(100_000)

    assert heir.payloads() == []


def test_the_end_of_the_session_is_the_last_moment_for_the_will(world: Any) -> None:
    heir = listener(world)
    world.welcome("c", will=delayed(50), props={"session_expiry_interval": 10}).lose()
    world.wait(10_000)
    assert heir.payloads() == [b"gone"]

    world.welcome("d", will=delayed(50), props={"session_expiry_interval": 100}).lose()
    world.welcome("d", clean_start=True)
    assert heir.payloads() == [b"gone"]


def test_a_takeover_executes_a_will_without_delay_only(world: Any) -> None:
    heir = listener(world)
    world.welcome("c", will=Will("w", b"at once"))
    world.client("c", clean_start=False)
    world.welcome("d", will=delayed(5), props={"session_expiry_interval": 60})
    world.client("d", clean_start=False)
    world.wait(100_000)

    assert heir.payloads() == [b"at once"]


def test_a_will_carries_its_properties_and_expires(world: Any) -> None:
    heir = listener(world)
    properties = Properties(
        content_type="text/plain", message_expiry_interval=9, user_properties=(("a", "b"),)
    )
    world.welcome("c", will=Will("w", b"x", 1, properties=properties)).lose()

    (message,) = heir.publications()
    assert message.properties == properties


def test_the_user_properties_of_a_will_keep_their_order(world: Any) -> None:
    heir = listener(world)
    pairs = (("b", "1"), ("a", "2"), ("b", "0"), ("", ""))
    world.welcome("c", will=Will("w", b"x", properties=Properties(user_properties=pairs))).lose()

    (message,) = heir.publications()
    assert message.properties.user_properties == pairs
