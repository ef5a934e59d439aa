"""What a node tells its event log, beside runs of packets: single events, drops, who is there.

The numbers here are those of `nearcast.eventlog.records` (a test sees to that). They are written
again so that PyArrow stays out of a broker that keeps no log.
"""

from __future__ import annotations

from nearcast.node.message import Message
from nearcast.node.session import Session
from nearcast.node.state import NodeState

SLOW, QUOTA, EXPIRED, TOO_LARGE, ENDED = range(5)  # records.Dropped
FROM_CLIENT, FROM_NODE, CAUSAL, CHOSEN = (way << 4 for way in range(4))  # records.Way
LIMITED = 8
NUMBER_SHIFT = 8
"""A mark in a session's queue has the QoS below this bit, and from it on the event's number."""


def note_event(
    state: NodeState, message: Message, publisher: str, flags: int = 0, *, retain: bool = False
) -> None:
    """Note one event; `flags` are its way and LIMITED."""
    log, head = state.log, message.head
    if state.feed is not None and not flags & ~LIMITED:  # from a client
        state.feed.take(message)
    if log is not None:
        lifetime_ms = max(1, message.expires_at_ms - state.now_ms) if message.expires_at_ms else 0
        flags |= head.qos | retain << 2
        topic = head.topic[2:]
        log.events(1, state.now_ms, flags, publisher, topic, message.payload, 0, lifetime_ms)


def mark_of(state: NodeState, place: int) -> int:
    """Return the mark of a message of the run at hand: its number, 0 if it has none."""
    return 0 if state.log is None else state.log.number(place) << NUMBER_SHIFT


def note_drop(state: NodeState, session: Session, mark: int, reason: int) -> None:
    """Note that a message that waited, or was to wait, is not sent."""
    if state.log is not None:
        number = mark >> NUMBER_SHIFT
        state.log.dropped([session.client_id], 1, reason, state.now_ms, number)


def note_missed(
    state: NodeState, session: Session, place: int, reason: int, count: int = 1
) -> None:
    """Note that messages of the run at hand, from this place on, are not sent to somebody."""
    log = state.log
    if log is not None:
        log.dropped([session.client_id], count, reason, state.now_ms, log.number(place))


def note_sent(state: NodeState, session: Session, message: Message, mark: int) -> None:
    """Note that a message has left the queue, if it has a lifetime: it may be late."""
    if state.log is not None and message.expires_at_ms and mark >> NUMBER_SHIFT:
        number, deadline_ms = mark >> NUMBER_SHIFT, message.expires_at_ms
        state.log.sent(number, session.client_id, state.now_ms, deadline_ms)


class aside:  # noqa: N801  (reads as a statement; a generator would cost three times as much)
    """Hand messages over in the body that are none of the event at hand: copies, awards."""

    __slots__ = ("_log", "_state")

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def __enter__(self) -> None:
        self._log, self._state.log = self._state.log, None

    def __exit__(self, *_: object) -> None:
        self._state.log = self._log


def note_start(state: NodeState) -> None:
    """Note that the node begins, and with which subscriptions; what was before does not count."""
    log, now_ms = state.log, state.now_ms
    if log is None:
        return
    log.present("", now_ms, is_there=True)
    for session in state.sessions.values():
        for one in session.subscriptions.values():
            log.subscription(
                now_ms,
                session.client_id,
                one.text,
                one.qos,
                is_added=True,
                no_local=one.no_local,
                is_restored=True,
            )
