"""What a broker writes to its event log, besides runs of packets: single events, drops, the start.

The numbers here are those of `nearcast.eventlog.records` (a test compares them). They are repeated
so that a broker without an event log does not import PyArrow.
"""

from __future__ import annotations

from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.state import BrokerState

SLOW, QUOTA, EXPIRED, TOO_LARGE, ENDED, REVOKED = range(6)  # records.Dropped
FROM_CLIENT, FROM_NODE, CAUSAL, CHOSEN = (way << 4 for way in range(4))  # records.Way
LIMITED = 8
NUMBER_SHIFT = 8
"""A mark in a session's queue has the QoS and flags below this bit, the event's number above."""


def note_event(
    state: BrokerState, message: Message, publisher: str, flags: int = 0, *, retain: bool = False
) -> None:
    """Log one event, and copy it to the feed; `flags` are its way and LIMITED."""
    log, head = state.log, message.head
    if state.feed is not None and not flags & ~LIMITED:  # from a client
        state.feed.take(message)
    if log is not None:
        lifetime_ms = max(1, message.expires_at_ms - state.now_ms) if message.expires_at_ms else 0
        flags |= head.qos | retain << 2
        topic = head.topic[2:]
        log.events(1, state.now_ms, flags, publisher, topic, message.payload, 0, lifetime_ms)


def note_subscription(
    state: BrokerState, subscription: SessionSubscription, qos: int, *, is_added: bool
) -> None:
    """Log that a subscription was made, replaced or ended."""
    if state.log is not None:
        name, no_local = subscription.session.client_id, is_added and subscription.no_local
        state.log.subscription(
            state.now_ms, name, subscription.text, qos, is_added=is_added, no_local=no_local
        )


def note_run(
    state: BrokerState,
    publisher: Session,
    way: int,
    count: int,
    qos: int,
    topic: bytes,
    packets: bytes,
    head_size: int,
) -> None:
    """Log a run of packets of one topic and size, and copy a client's run to the feed.

    Only with a log; with a feed there always is one (`SilentLog`). The payloads begin at
    `head_size`.
    """
    assert state.log is not None
    state.log.events(
        count, state.now_ms, qos | way, publisher.client_id, topic[2:], packets, head_size
    )
    if state.feed is not None and way == FROM_CLIENT:
        state.feed.take_run(count, topic, packets, head_size, qos)


def mark_of(state: BrokerState, place: int) -> int:
    """Return the queue mark of a message of the current run: its event number, 0 without a log."""
    return 0 if state.log is None else state.log.number(place) << NUMBER_SHIFT


def note_drop(state: BrokerState, session: Session, mark: int, reason: int) -> None:
    """Log that a message that was queued, or was to be queued, is dropped."""
    if state.log is not None:
        number = mark >> NUMBER_SHIFT
        state.log.dropped([session.client_id], 1, reason, state.now_ms, number)


def note_missed(
    state: BrokerState, session: Session, place: int, reason: int, count: int = 1
) -> None:
    """Log that messages of the current run, from `place` on, are not sent to a session."""
    log = state.log
    if log is not None:
        log.dropped([session.client_id], count, reason, state.now_ms, log.number(place))


def note_sent(state: BrokerState, session: Session, message: Message, mark: int) -> None:
    """Log that a message with a lifetime has left the queue: it may be late."""
    if state.log is not None and message.expires_at_ms and mark >> NUMBER_SHIFT:
        number, deadline_ms = mark >> NUMBER_SHIFT, message.expires_at_ms
        state.log.sent(number, session.client_id, state.now_ms, deadline_ms)


class aside:  # noqa: N801  (reads as a statement; a generator would cost three times as much)
    """Suspend the event log in the body, for deliveries that are not of the logged event.

    For example retained copies, and messages sent to a peer.
    """

    __slots__ = ("_log", "_state")

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._log, self._state.log = self._state.log, None

    def __exit__(self, *_: object) -> None:
        self._state.log = self._log


def note_start(state: BrokerState) -> None:
    """Log that the broker starts and its restored subscriptions; earlier records do not count."""
    log, now_ms = state.log, state.now_ms
    if log is None:
        return
    log.present("", now_ms, is_there=True)
    for session in state.sessions.values():
        for subscription in session.subscriptions.values():
            log.subscription(
                now_ms,
                session.client_id,
                subscription.text,
                subscription.qos,
                is_added=True,
                no_local=subscription.no_local,
                is_restored=True,
            )
