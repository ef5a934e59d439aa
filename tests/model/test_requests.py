"""Properties and prefixes: one grammar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model import MisuseError, read_publication, read_subscription, split_prefixes
from nearcast.model.requests import INSTRUCTING, PUBLISHING, SELECTING, SUBSCRIBING, decoded

wishes = st.fixed_dictionaries(
    {},
    optional={
        "$where": st.sampled_from(
            ["price < 5", 'kind in ("a/b", "c+d", "50 %")', "x = 1 or y = 2"]
        ),
        "$area": st.sampled_from(["bbox(1,2,3,4)", "circle(1,2,3km)"]),
        "$near": st.sampled_from(["500m", "0.5 km"]),
        "$retained": st.just("now"),
    },
)


@given(wishes, st.permutations(SELECTING))
def test_a_wish_reads_the_same_as_properties_and_as_prefixes_in_any_order(
    wish: dict[str, str], order: list[str]
) -> None:
    told = read_subscription("a/+/#", wish.items())

    prefixes, bare = split_prefixes(told.subscription.identity, SELECTING)
    again = read_subscription(bare, sorted(decoded(prefixes), key=lambda one: order.index(one[0])))

    assert bare == "a/+/#"
    assert len(prefixes) == len(wish)
    assert again == told
    assert told.is_selective == bool(wish)


@given(st.text(max_size=20), st.sampled_from([*SUBSCRIBING, *PUBLISHING]))
def test_any_text_is_read_or_refused_with_the_name(text: str, name: str) -> None:
    for read in (
        lambda: read_subscription("a", [(name, text)]),
        lambda: read_publication([(name, text)]),
    ):
        try:
            read()
        except MisuseError as problem:
            assert problem.where.startswith(name)  # noqa: PT017 - both outcomes are fine


@given(st.text(alphabet="$a/topwher%2", max_size=30))
def test_any_topic_is_split_or_refused(topic: str) -> None:
    for names in (SELECTING, INSTRUCTING):
        try:
            pairs, bare = split_prefixes(topic, names)
        except MisuseError:
            continue
        assert "".join(f"{name}/{value}/" for name, value in pairs) + bare == topic


@pytest.mark.parametrize("name", ["$near", "$label"])
def test_a_name_given_twice_is_refused(name: str) -> None:
    with pytest.raises(MisuseError, match="one value"):
        read_subscription("a", [(name, "5m"), (name, "5m")])


def test_names_of_no_concern_are_passed_over() -> None:
    assert read_publication([("colour", "red"), ("$where", "((")]).top is None
    assert not read_subscription("a", [("$top", "0"), ("colour", "red")]).is_selective


@pytest.mark.parametrize(("text", "lifetime_ms"), [("250ms", 250), ("0.1ms", 1), ("2s", 2000)])
def test_lifetimes_are_whole_milliseconds_rounded_up(text: str, lifetime_ms: int) -> None:
    assert read_publication([("$lifetime", text)]).lifetime_ms == lifetime_ms
