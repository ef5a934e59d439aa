"""The columns of every table, in the order in which they are written."""

from __future__ import annotations

import pyarrow as pa

INSTANT = pa.timestamp("us", tz="UTC")

POSITIONS = pa.schema(
    [
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("t", INSTANT, nullable=False),
        pa.field("lon", pa.float64(), nullable=False),
        pa.field("lat", pa.float64(), nullable=False),
        # A trip ends where fixes stop for longer than the gap; trips of a user count from 0.
        pa.field("trip", pa.int32(), nullable=False),
        # From the trip's previous fix to this one; 0 at a trip's first fix.
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

DELIVERIES = pa.schema(
    [
        pa.field("event_id", pa.int64(), nullable=False),
        pa.field("subscription_id", pa.int64(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
    ]
)
