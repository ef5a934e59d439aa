"""Names and filters by section 4.7."""

from __future__ import annotations

import pytest

from nearcast.mqtt import (
    MqttProtocolError,
    ReasonCode,
    SharedFilter,
    check_topic_filter,
    check_topic_name,
    split_shared,
)


@pytest.mark.parametrize("text", ["#", "+", "a/+/b", "+/+/#", "/", "//", "a b", "$SYS/#", "a/#"])
def test_filters_of_the_specification_are_accepted(text: str) -> None:
    check_topic_filter(text)


@pytest.mark.parametrize("text", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a/b+", "##", "++"])
def test_filters_against_the_specification_are_refused(text: str) -> None:
    with pytest.raises(MqttProtocolError) as caught:
        check_topic_filter(text)
    assert caught.value.reason is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("text", ["", "+", "#", "a/+", "a/#"])
def test_names_with_wildcards_or_without_characters_are_refused(text: str) -> None:
    with pytest.raises(MqttProtocolError) as caught:
        check_topic_name(text)
    assert caught.value.reason is ReasonCode.TOPIC_NAME_INVALID


def test_depth_is_limited_where_a_limit_is_given() -> None:
    check_topic_name("a/b/c", max_levels=3)
    check_topic_filter("a/b/#", max_levels=3)
    with pytest.raises(MqttProtocolError):
        check_topic_name("a/b/c/d", max_levels=3)
    with pytest.raises(MqttProtocolError):
        check_topic_filter("a/b/c/#", max_levels=3)


def test_a_share_group_is_taken_off() -> None:
    assert split_shared("$share/g/a/b") == SharedFilter("g", "a/b")
    assert split_shared("$share/g//") == SharedFilter("g", "/")
    assert split_shared("$shares/g/a") == SharedFilter("", "$shares/g/a")


@pytest.mark.parametrize("text", ["$share", "$share/", "$share/g", "$share/g/", "$share//a"])
def test_a_share_without_group_or_filter_is_refused(text: str) -> None:
    with pytest.raises(MqttProtocolError):
        split_shared(text)


@pytest.mark.parametrize("text", ["$share/+/a", "$share/g#/a", "$share/a+b/a"])
def test_a_share_group_has_no_wildcards(text: str) -> None:
    with pytest.raises(MqttProtocolError):
        split_shared(text)
