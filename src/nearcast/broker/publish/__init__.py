"""From a PUBLISH packet to the outboxes of its subscribers: the hot path.

Read next: `handler.py` (the ways of a packet through the steps), `decode.py`, `authorise.py`,
`routes.py` and `route_cache.py` (from a topic to its receivers), `share_groups.py`, `delivery.py`
(all receivers), `session_queues.py` (one receiver: window, queue, acknowledgements), `acks.py`
(PUBACK, PUBREC, PUBREL, PUBCOMP), `message.py` (one encoding for all receivers), `properties.py`.
"""
