"""The counters of a broker; whatever drops a message adds to one of them.

A counter is declared once, with `counter`. Its field, its metric, its `$SYS` topics and its row of
the reference page come from there (`nearcast/server/metrics/metrics.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def counter(help_text: str, *topics: str, name: str = "") -> Any:
    """Return the field of a counter, which is shown as the metric `nearcast_<field>_total`.

    `topics` are below `$SYS/broker`. `name` is the metric's, where it is not the field's.
    """
    return field(default=0, metadata={"help": help_text, "topics": topics, "name": name})


@dataclass(slots=True)
class Counters:
    """Totals since the broker was created.

    `dropped_<reason>` counts deliveries that did not happen: one metric with a label, see `DROPS`.
    """

    bytes_received: int = counter("Bytes that clients have sent", "bytes/received")
    bytes_sent: int = counter("Bytes sent to clients", "bytes/sent")
    others_received: int = counter("Packets received other than PUBLISH")
    others_sent: int = counter("Packets sent other than PUBLISH")
    publish_received: int = counter("PUBLISH packets received", "publish/messages/received")
    publish_sent: int = counter("PUBLISH packets sent", "publish/messages/sent")
    publish_bytes_received: int = counter(
        "Bytes of PUBLISH packets received", "publish/bytes/received"
    )
    publish_bytes_sent: int = counter("Bytes of PUBLISH packets sent", "publish/bytes/sent")
    connects: int = counter("Clients that connected")
    connects_refused: int = counter("Clients refused")
    protocol_errors: int = counter("Connections closed for a violation of the protocol")
    sessions_expired: int = counter("Sessions that expired", "clients/expired")
    dropped_slow: int = counter("QoS 0, and the client's outbox is full")
    dropped_quota: int = counter("QoS 1 or 2 over the quota of a session or the node")
    dropped_expired: int = counter("the message expired")
    dropped_too_large: int = counter(
        "above the receiver's maximum packet size, or `limits.message_size_limit`"
    )
    dropped_forbidden: int = counter("the publisher may not publish to the topic")
    dropped_ended: int = counter("queued for a session that ended")
    dropped_no_member: int = counter("for a share group without members")
    dropped_probing: int = counter(
        "asked or published about one place too often, in a space with private positions"
    )
    dropped_revoked: int = counter("the receiver may no longer read the topic: rules changed")
    dropped_invalid: int = counter("with an invalid instruction, such as `$top=0`")
    unplaced: int = counter("Publications without a valid point in their space")
    positions: int = counter("Positions of clients accepted")
    positions_refused: int = counter("Positions of clients refused")
    near_without_position: int = counter(
        "`$near` subscriptions made before the client's position was known"
    )
    subscriptions_lost: int = counter(
        "Stored subscriptions not restored: their space is no longer declared"
    )
    unwanted: int = counter(
        "Publications of peers that match nothing here: an aggregated filter was loose",
        "network/messages/unwanted",
    )
    crossings: int = counter("Retained messages sent to clients that came into range")
    retained_held: int = counter("Retained messages deferred for a new subscription")
    retained_released: int = counter("Deferred retained messages that were sent later")
    retained_replaced: int = counter(
        "Deferred retained messages that were never sent: a live message came first"
    )
    retained_created_ignored: int = counter(
        "Retained publications whose creation time was not plausible: their arrival counts"
    )
    tables_learned: int = counter("Policy tables that the broker learned itself")
    journal_records_set_aside: int = counter(
        "Records of the journal that could not be applied at the start"
    )
    journal_damages: int = counter("Damaged places found in the journal at the start")
    journal_compactions_failed: int = counter(
        "Compactions of the journal that failed and are tried again"
    )
    refused_subscriptions: int = counter("Subscriptions refused because of a limit")
    refused_sessions: int = counter("Clients refused because there are too many sessions")
    refused_retained: int = counter("Publications delivered, but not retained because of a limit")
    unread: int = counter("Times that reading from a client paused: it did not read its answers")

    @property
    def messages_received(self) -> int:
        """All packets received."""
        return self.others_received + self.publish_received

    @property
    def messages_sent(self) -> int:
        """All packets sent."""
        return self.others_sent + self.publish_sent


DROPS = {
    one.name.removeprefix("dropped_"): one.name
    for one in fields(Counters)
    if one.name.startswith("dropped_")
}
"""The counter of each reason to drop a message."""
