"""From a PUBLISH packet to the outboxes of its subscribers: the hot path.

Read next: `handler.py` (packets in), `routes.py` and `route_cache.py` (from a topic to its
receivers), `delivery.py` (outboxes, in-flight windows, queues), `acks.py` (PUBACK, PUBREC, PUBREL,
PUBCOMP), `message.py` (one encoding for all receivers), `properties.py`.
"""
