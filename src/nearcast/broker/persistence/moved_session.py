"""A session on its way to another node: packed as records at its old home, adopted at the new one.

Only a session without messages in flight moves: packet identifiers in use stay where they are.
The records are those of the journal, with numbers of their own.
"""

from __future__ import annotations

from nearcast.broker.persistence.journal import Journal, decode_message, encode_message
from nearcast.broker.persistence.replay import Replay
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState


def is_still(session: Session) -> bool:
    """Return whether nothing of a session is in flight, in either direction."""
    return not (session.in_flight or session.released or session.incoming or session.copies)


def pack_session(session: Session) -> bytes:
    """Return the records of a session that `is_still`: its subscriptions, position and queue."""
    assert is_still(session)
    journal = Journal(keeps_ages=True)
    journal.session(session)
    for subscription in session.subscriptions.values():
        journal.subscribed(subscription)
    journal.position(session)
    for message, mark in session.queue:
        if mark & 3:
            # a copy: the message itself keeps its number in this node's journal
            copy = decode_message(encode_message(message, 0))
            journal.queued(session.number, copy, mark)
    return journal.take()


def unpack_session(data: bytes, state: BrokerState) -> tuple[Session, Replay] | None:
    """Return a packed session with numbers of this node; None if it cannot be adopted.

    `Replay.finish` puts it into effect. Nothing has changed before that.
    """
    replay = Replay(state)
    replay.apply(data)
    if replay.aside or len(replay.sessions) != 1:
        return None
    session = replay.sessions[0]
    if session.is_peer or session.client_id in state.sessions or session.client_id in state.ending:
        return None
    session.number = state.next_session
    session.ends_at_ms = state.now_ms + session.expiry_s * 1000
    for subscription in session.subscriptions.values():
        subscription.number = 0
    for message, _ in session.queue:
        message.number = 0
    return session, replay
