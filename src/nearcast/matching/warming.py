"""Compiling before serving: after this no question waits for a compiler."""

from __future__ import annotations

from nearcast.index.box_index import warm_up as warm_up_boxes
from nearcast.matching.matcher import Matcher
from nearcast.matching.shelf import MANY
from nearcast.model import Attribute, Event, Space, Subscription


def warm_up() -> None:
    """Ask a small matcher everything once; a second or two, less from the disk cache."""
    warm_up_boxes()
    lon, lat = Attribute.number("lon", -180, 180), Attribute.number("lat", -90, 90)
    space = Space(
        name="warm",
        topic_filter="#",
        attributes=(lon, lat),
        longitude="lon",
        latitude="lat",
        missing="none",
    )
    matcher = Matcher([space])
    for key in range(MANY + 2):
        matcher.add(key, Subscription(topic_filter="#", near_m=500.0), position=(0.01 * key, 0.0))
    matcher.move(1, (1.0, 1.0))
    event = Event.of(space, "a", {"lon": 1.0, "lat": 1.0})
    matcher.match(event)
    matcher.match_point("warm", "a", (1.0, 1.0))
    matcher.top(event, 1)
    matcher.top(event, 1, "nearest")
    matcher.match_points("warm", "a", [[1.0, 1.0]])
    matcher.remove(1)
