"""Helpers for MQTT clients of Nearcast, for use with paho-mqtt and aiomqtt.

Does: build the user properties (MQTT 5) or the prefixes (MQTT 3.1.1) of content subscriptions,
ranked publications and positions, and decode what the broker adds to a delivery. A mistake that can
be found without the broker (an invalid condition, `top=0`) raises before anything is sent.

Does not: connect, send or receive. Your MQTT client does; any client can, since these are ordinary
user properties. Importing this imports no MQTT library; `properties()` imports paho-mqtt, whose
`Properties` aiomqtt accepts too.

    selection = Selection(where="price < 10", near="500m")
    client.subscribe("shops/#", qos=1, properties=selection.properties())
    client.publish(POSITION_TOPIC, position(-122.4079, 37.7875))
    client.publish("orders/new", payload, properties=Offer(top=3, rank="nearest").properties())

Read next: `selecting.py` (subscribing), `offering.py` (publishing), `positions.py`, `receiving.py`.
`blocking.py` is the client of the command line.
"""

from nearcast.client.offering import Offer
from nearcast.client.positions import POSITION_TOPIC, position, position_properties
from nearcast.client.receiving import Delivered, RankedMatch, delivered, ranked_matches
from nearcast.client.selecting import Selection

__all__ = [
    "POSITION_TOPIC",
    "Delivered",
    "Offer",
    "RankedMatch",
    "Selection",
    "delivered",
    "position",
    "position_properties",
    "ranked_matches",
]
