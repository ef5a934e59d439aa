"""The columns of every table, in the order in which they are written.

A table is declared as text, a line for each column: its name, its type, and what it means where the
name does not say it. A type with `?` allows null.
"""

from __future__ import annotations

import pyarrow as pa

from nearcast.model import Space

INSTANT = pa.timestamp("us", tz="UTC")
_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "instant": INSTANT,
    "logged": pa.timestamp("ms", tz="UTC"),
}


def _schema(text: str) -> pa.Schema:
    fields = []
    for line in text.strip().splitlines():
        name, kind, *_ = line.split()
        fields.append(pa.field(name, _TYPES[kind.rstrip("?")], nullable=kind.endswith("?")))
    return pa.schema(fields)


POSITIONS = _schema("""
    user_id  string
    t        instant
    lon      float64
    lat      float64
    trip     int32    a trip ends where positions stop for longer than the gap; counted from 0
    step_s   float64  from the trip's previous position to this one; 0 at a trip's first position
    step_m   float64
""")

REJECTED_POSITIONS = _schema("""
    user_id  string?
    t        string?
    lon      string?
    lat      string?
    reason   string
""")

# The report of `ingest`: what it counted, by section.
QUALITY = _schema("""
    section  string
    name     string
    value    string
    rows     int64?
""")

CELLS = _schema("""
    column       int32
    row          int32
    hour         int32
    fixes        int64
    dwell_ms     int64
    slow_ms      int64
    distance_mm  int64
""")

REGIONS = _schema("""
    region_id       int32
    west            float64
    south           float64
    east            float64
    north           float64
    cells           int32
    dwell_s         float64
    slow_share      float64
    mean_speed_mps  float64
""")

# The policy table of one topic, with the rates from which it was computed.
TOPIC_POLICIES = _schema("""
    topic            string
    publishes        int64
    publish_per_s    float64
    subscribe_per_s  float64
    leave_per_s      float64
    hold_s           float64
    publish          float64  per step, a tenth of the longest deferral; rounded to the grid
    subscribe        float64
    leave            float64  rounded to the grid
    omega            float64
    message_cost     float64
    actions          string   0 sends, 1 waits: row by row, as in a policy file
""")

DELIVERIES = _schema("""
    event_id         int64
    subscription_id  int64
    rank             int32
""")

# Results of `pipeline audit`: one row per fault. Node and sequence number identify a message.
FAULTS = _schema("""
    kind       string    lost, doubled, late, misordered or unasked
    node       string
    sequence   int64
    t          instant?
    topic      string?
    publisher  string?
    receiver   string
    why        string
""")

# What the audit could not decide, and why: the number of deliveries or sequence numbers of a node.
UNKNOWN = _schema("""
    node   string
    why    string
    count  int64
    first  int64?
    last   int64?
""")

# A rejected input row as JSON, and the reason.
REJECTED_ROWS = _schema("""
    raw     string?
    reason  string
""")


def events_schema(space: Space) -> pa.Schema:
    """Return the columns of a table of a space's events: publisher, time, and one per attribute."""
    columns = ["event_id int64", "t instant?", "publisher string?", "topic string?"]
    attributes = [
        pa.field(one.name, pa.string() if one.is_category else pa.float64())
        for one in space.attributes
    ]
    return pa.schema([*_schema("\n".join(columns)), *attributes])


# --- the event log of a node: written by `segments.py` ---------------------------------------


def _logged(text: str) -> pa.Schema:
    """Return the schema of a table of the log: each row has its node and a sequence number."""
    return pa.schema([*_schema("node string\nsequence int64"), *_schema(text)])


LOG_TABLES = {
    "events": _logged("""
        t            logged
        publisher    string
        topic        string
        qos          int8
        retain       bool
        payload      binary
        lifetime_ms  int64?  null: it does not expire
        limited      bool    the receivers do not follow from this row ($top, an event with extent)
        way          string  the lower-case name of a `records.Arrival`
    """),
    # The sequence number is that of the event.
    "deliveries": _logged("""
        receiver  string
        qos       int8
    """),
    "subscriptions": _logged("""
        t         logged
        client    string
        filter    string
        qos       int8
        added     bool
        no_local  bool
        restored  bool    it existed before the node was started
    """),
    "positions": _logged("""
        t       logged
        client  string
        lon     float64
        lat     float64
    """),
    "retained": _logged("""
        t                logged
        client           string
        topic            string
        choice           string    the lower-case name of a `records.RetainedChoice`
        publish_per_s    float64?  null where the topic's rates were not known
        subscribe_per_s  float64?
        leave_per_s      float64?
        policy           string
        reason           string
    """),
    # Connects and disconnects: clients, peers ($node/NAME), and the node itself ("").
    "presence": _logged("""
        t       logged
        client  string
        there   bool
    """),
    # Messages that were due and not delivered, or removed from a queue; numbers of their events.
    "drops": _logged("""
        t         logged
        receiver  string
        reason    string  the lower-case name of a `records.Dropped`
    """),
    # When a message with a lifetime was sent from the queue in which it had waited.
    "sent": _logged("""
        t         logged
        receiver  string
        deadline  logged
    """),
    # Messages of causal groups; sender and stamp identify a message.
    "causal": _logged("""
        t            logged
        step         string  the lower-case name of a `records.CausalStep`
        group        string
        sender       string
        stamp_us     int64
        lifetime_us  int64
        detail       string
    """),
    # Numbers that were left out on purpose; a number that is in no table was lost.
    "gaps": _logged("""
        count   int64
        reason  string
    """),
}
