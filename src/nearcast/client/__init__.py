"""What an MQTT client says to Nearcast, spelled for paho-mqtt and aiomqtt.

Does: builds the user properties (MQTT 5) or the prefixes (MQTT 3.1.1) of selective subscriptions,
ranked publishes and positions, and reads back what the broker adds to a delivery. A mistake that
can be seen without the broker (a condition that is none, `top=0`) is told before anything is sent.

Will not: connect, send or receive. Your MQTT client does; any client can, since these are ordinary
user properties. Importing this imports no MQTT library; `properties()` imports paho-mqtt, whose
`Properties` aiomqtt takes too.

    wish = Selection(where="price < 10", near="500m")
    client.subscribe("shops/#", qos=1, properties=wish.properties())
    client.publish(POSITION_TOPIC, position(-122.4079, 37.7875))
    client.publish("orders/new", payload, properties=Offer(top=3, rank="nearest").properties())

Read `selecting` (subscribing), then `offering` (publishing), `positions`, `receiving`.
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
