"""The counters of a broker; whatever drops a message adds to one of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the broker was created."""

    bytes_received: int = 0
    bytes_sent: int = 0
    others_received: int = 0  # packets other than PUBLISH
    others_sent: int = 0
    publish_received: int = 0
    publish_sent: int = 0
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    connects: int = 0
    connects_refused: int = 0
    protocol_errors: int = 0
    sessions_expired: int = 0
    dropped_slow: int = 0  # QoS 0 for a client whose outbox is full
    dropped_quota: int = 0  # QoS 1/2 over a session's or the node's quota
    dropped_expired: int = 0  # the message expired
    dropped_too_large: int = 0  # above the receiver's maximum packet size, or max_message_bytes
    dropped_forbidden: int = 0  # the publisher may not publish to the topic
    dropped_ended: int = 0  # queued for a session that ended
    dropped_no_member: int = 0  # for a share group that has no member left
    dropped_invalid: int = 0  # with an invalid instruction, such as $top=0
    unplaced: int = 0  # events without a valid point in their space: only for plain subscribers
    positions: int = 0  # positions accepted
    positions_refused: int = 0
    near_without_position: int = 0  # $near subscriptions made before a position was known
    subscriptions_lost: int = 0  # stored ones whose space is no longer declared
    unwanted: int = 0  # events from peers that match nothing here: an aggregated filter was loose
    crossings: int = 0  # retained messages sent on range entry
    retained_held: int = 0  # retained messages deferred for a new subscription
    retained_released: int = 0  # of those, sent later
    retained_replaced: int = 0  # of those, never sent: a live message came first
    tables_learned: int = 0
    journal_records_set_aside: int = 0  # at the start: records that could not be applied
    journal_damages: int = 0  # at the start: parts of the journal that could not be read
    journal_compactions_failed: int = 0
    refused_subscriptions: int = 0  # above a limit
    refused_sessions: int = 0
    refused_retained: int = 0  # delivered, but not retained
    unread: int = 0  # how often reading from a client was paused: it did not read its acks

    @property
    def messages_received(self) -> int:
        """All packets received."""
        return self.others_received + self.publish_received

    @property
    def messages_sent(self) -> int:
        """All packets sent."""
        return self.others_sent + self.publish_sent

    @property
    def publish_dropped(self) -> int:
        """All publications and deliveries that were dropped."""
        return (
            self.dropped_slow
            + self.dropped_quota
            + self.dropped_expired
            + self.dropped_too_large
            + self.dropped_forbidden
            + self.dropped_ended
            + self.dropped_no_member
            + self.dropped_invalid
        )
