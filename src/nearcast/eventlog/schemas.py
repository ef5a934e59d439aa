"""The columns of every table, in the order in which they are written."""

from __future__ import annotations

import pyarrow as pa

from nearcast.model import Space

INSTANT = pa.timestamp("us", tz="UTC")

POSITIONS = pa.schema(
    [
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("t", INSTANT, nullable=False),
        pa.field("lon", pa.float64(), nullable=False),
        pa.field("lat", pa.float64(), nullable=False),
        # A trip ends where positions stop for longer than the gap; trips of a user count from 0.
        pa.field("trip", pa.int32(), nullable=False),
        # From the trip's previous position to this one; 0 at a trip's first position.
        pa.field("step_s", pa.float64(), nullable=False),
        pa.field("step_m", pa.float64(), nullable=False),
    ]
)

REJECTED_POSITIONS = pa.schema(
    [
        pa.field("user_id", pa.string()),
        pa.field("t", pa.string()),
        pa.field("lon", pa.string()),
        pa.field("lat", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

CELLS = pa.schema(
    [
        pa.field("column", pa.int32(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("hour", pa.int32(), nullable=False),
        pa.field("fixes", pa.int64(), nullable=False),
        pa.field("dwell_ms", pa.int64(), nullable=False),
        pa.field("slow_ms", pa.int64(), nullable=False),
        pa.field("distance_mm", pa.int64(), nullable=False),
    ]
)

REGIONS = pa.schema(
    [
        pa.field("region_id", pa.int32(), nullable=False),
        pa.field("west", pa.float64(), nullable=False),
        pa.field("south", pa.float64(), nullable=False),
        pa.field("east", pa.float64(), nullable=False),
        pa.field("north", pa.float64(), nullable=False),
        pa.field("cells", pa.int32(), nullable=False),
        pa.field("dwell_s", pa.float64(), nullable=False),
        pa.field("slow_share", pa.float64(), nullable=False),
        pa.field("mean_speed_mps", pa.float64(), nullable=False),
    ]
)

# The policy table of one topic, with the rates from which it was computed.
TOPIC_POLICIES = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("publishes", pa.int64(), nullable=False),
        pa.field("publish_per_s", pa.float64(), nullable=False),
        pa.field("subscribe_per_s", pa.float64(), nullable=False),
        pa.field("leave_per_s", pa.float64(), nullable=False),
        pa.field("hold_s", pa.float64(), nullable=False),
        # Per step, a tenth of the longest deferral; publish and leave are rounded to the grid.
        pa.field("publish", pa.float64(), nullable=False),
        pa.field("subscribe", pa.float64(), nullable=False),
        pa.field("leave", pa.float64(), nullable=False),
        pa.field("omega", pa.float64(), nullable=False),
        pa.field("message_cost", pa.float64(), nullable=False),
        # 0 sends, 1 waits: row by row, as in a policy file.
        pa.field("actions", pa.string(), nullable=False),
    ]
)

DELIVERIES = pa.schema(
    [
        pa.field("event_id", pa.int64(), nullable=False),
        pa.field("subscription_id", pa.int64(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
    ]
)

# Results of `pipeline audit`: one row per fault. Node and sequence number identify a message.
FAULTS = pa.schema(
    [
        # lost, doubled, late, misordered or unasked
        pa.field("kind", pa.string(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("t", INSTANT),
        pa.field("topic", pa.string()),
        pa.field("publisher", pa.string()),
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
    ]
)

# What the audit could not decide, and why: the number of deliveries or sequence numbers of a node.
UNKNOWN = pa.schema(
    [
        pa.field("node", pa.string(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
    ]
)

# A rejected input row as JSON, and the reason.
REJECTED_ROWS = pa.schema(
    [pa.field("raw", pa.string()), pa.field("reason", pa.string(), nullable=False)]
)


def events_schema(space: Space) -> pa.Schema:
    """Return the columns of a table of a space's events: publisher, time, and one per attribute."""
    attributes = [
        pa.field(one.name, pa.string() if one.is_category else pa.float64())
        for one in space.attributes
    ]
    return pa.schema(
        [
            pa.field("event_id", pa.int64(), nullable=False),
            pa.field("t", INSTANT),
            pa.field("publisher", pa.string()),
            pa.field("topic", pa.string()),
            *attributes,
        ]
    )


# --- the event log of a node: written by `segments.py` ---------------------------------------

_LOGGED_AT = pa.timestamp("ms", tz="UTC")
_NUMBERED = [
    pa.field("node", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
]

EVENTS = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        # Null: it does not expire.
        pa.field("lifetime_ms", pa.int64()),
        # The receivers do not follow from this row ($top, an event with an extent).
        pa.field("limited", pa.bool_(), nullable=False),
        # The lower-case name of a `records.Arrival`.
        pa.field("way", pa.string(), nullable=False),
    ]
)

# The sequence number is that of the event.
EVENT_DELIVERIES = pa.schema(
    [
        *_NUMBERED,
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
    ]
)

SUBSCRIPTION_CHANGES = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("client", pa.string(), nullable=False),
        pa.field("filter", pa.string(), nullable=False),
        pa.field("qos", pa.int8(), nullable=False),
        pa.field("added", pa.bool_(), nullable=False),
        pa.field("no_local", pa.bool_(), nullable=False),
        # It existed before the node was started.
        pa.field("restored", pa.bool_(), nullable=False),
    ]
)

CLIENT_POSITIONS = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("client", pa.string(), nullable=False),
        pa.field("lon", pa.float64(), nullable=False),
        pa.field("lat", pa.float64(), nullable=False),
    ]
)

RETAINED_DECISIONS = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("client", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        # The lower-case name of a `records.RetainedChoice`.
        pa.field("choice", pa.string(), nullable=False),
        # Null where the topic's rates were not known.
        pa.field("publish_per_s", pa.float64()),
        pa.field("subscribe_per_s", pa.float64()),
        pa.field("leave_per_s", pa.float64()),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

# Connects and disconnects: clients, peers ($node/NAME), and the node itself ("").
PRESENCE = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("client", pa.string(), nullable=False),
        pa.field("there", pa.bool_(), nullable=False),
    ]
)

# Messages that were due and not delivered, or removed from a queue; numbers are those of events.
DROPS = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("receiver", pa.string(), nullable=False),
        # The lower-case name of a `records.Dropped`.
        pa.field("reason", pa.string(), nullable=False),
    ]
)

# When a message with a lifetime was sent from the queue in which it had waited.
SENT = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("deadline", _LOGGED_AT, nullable=False),
    ]
)

# Messages of causal groups; sender and stamp identify a message.
CAUSAL = pa.schema(
    [
        *_NUMBERED,
        pa.field("t", _LOGGED_AT, nullable=False),
        # The lower-case name of a `records.CausalStep`.
        pa.field("step", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("stamp_us", pa.int64(), nullable=False),
        pa.field("lifetime_us", pa.int64(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)

# Numbers that were left out on purpose; a number that is in no table was lost.
GAPS = pa.schema(
    [
        *_NUMBERED,
        pa.field("count", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

LOG_TABLES = {
    "events": EVENTS,
    "deliveries": EVENT_DELIVERIES,
    "subscriptions": SUBSCRIPTION_CHANGES,
    "positions": CLIENT_POSITIONS,
    "retained": RETAINED_DECISIONS,
    "presence": PRESENCE,
    "drops": DROPS,
    "sent": SENT,
    "causal": CAUSAL,
    "gaps": GAPS,
}
