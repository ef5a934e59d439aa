"""Whether conditions held for an event: the quick answers of the audit are those of the matcher."""

import json

from hypothesis import given
from hypothesis import strategies as st

from nearcast.config.schema import SpaceSection
from nearcast.model import Event, parse_shape, parse_where
from nearcast.model.subscription import Subscription
from nearcast.pipeline.audit.conditions import NO, PERHAPS, YES, ConditionJudge

CITY = SpaceSection.model_validate(
    {
        "name": "city",
        "topics": "city/#",
        "longitude": "lon",
        "latitude": "lat",
        "attributes": {
            "lon": {"low": -1, "high": 1},
            "lat": {"low": -1, "high": 1},
            "price": {"low": 0, "high": 10},
        },
    }
)
M = 1 / 111_195  # a metre, in degrees of latitude
AREA = "0,0,0.001,0.001"  # west, south, east, north
WISHES = {
    f"{where and f'$where/{where}/'}{area and f'$area/{area}/'}$near/100m/city/#": (where, area)
    for where in ("", "price < 5", "price >= 5")
    for area in ("", AREA)
}


@given(
    text=st.sampled_from(sorted(WISHES)),
    price=st.sampled_from([None, 0, 4, 5, 9]),
    place_m=st.tuples(st.integers(-120, 120), st.integers(-120, 120)),
    client_m=st.sampled_from([(0, 0), (99, 0), (0, -101)]),
)
def test_an_answer_is_that_of_the_definition(text, price, place_m, client_m):
    where, area = WISHES[text]
    wish = Subscription(
        topic_filter="city/#", near_m=100,
        where=parse_where(where) if where else None,
        area=parse_shape(f"bbox({AREA})") if area else None,
    )  # fmt: skip
    values = {"lon": place_m[0] * M, "lat": place_m[1] * M}
    values |= {} if price is None else {"price": price}
    event = Event.of(CITY.to_space(), "city/x", values)
    client = (client_m[0] * M, client_m[1] * M)
    judge = ConditionJudge((CITY,))
    payload = json.dumps(values).encode()
    found = judge.covers("city/x", payload, text, (*client, False))
    assert found == (YES if wish.covers(event, client) else NO)
    assert judge.covers("city/x", payload, text, (*client, True)) == PERHAPS  # it may have moved


def test_conditions_are_compared_with_each_event_anew():
    judge = ConditionJudge((CITY,))
    for price, expected in ((4, YES), (6, NO), (4, YES)):
        payload = json.dumps({"lon": 0, "lat": 0, "price": price}).encode()
        text = "$where/price < 5/$near/100m/city/#"
        assert judge.covers("city/x", payload, text, (0.0, 0.0, False)) == expected
