"""The sessions of several brokers dealt out anew: what happens when a broker gets other workers.

Each session goes to one of the new brokers, with its subscriptions, queue, deliveries in flight and
will; retained messages go to all of them. Numbers of sessions, messages and subscriptions are given
anew, and subscriptions keep their order, since a space may rank by age. What the old brokers noted
about each other is left out: nothing may be on its way between them (`unsettled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nearcast.broker.broker import Broker
from nearcast.broker.persistence.journal import Journal
from nearcast.broker.persistence.replay import tell_session
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session
from nearcast.broker.settings import HELD_NOTE

_PORTION_BYTES = 1 << 20


def unsettled(brokers: Sequence[Broker]) -> list[str]:
    """Return the names of nodes for which messages wait; nothing may, before sessions move."""
    return [
        name
        for broker in brokers
        for name in sorted(broker.node_names())
        if broker.peering.has_unsettled(name)
    ]


def redistribute(
    brokers: Sequence[Broker], count: int, place_of: Callable[[str, int], int]
) -> list[Iterator[bytes]]:
    """Return for each of `count` new brokers the records of its journal, in portions.

    `place_of` says which broker has the session of an identifier. The old brokers must be restored,
    and must not be used any more. Complexity: O(everything).
    """
    _number_anew(brokers)
    dealt: list[list[tuple[Broker, Session]]] = [[] for _ in range(count)]
    for broker in brokers:
        for session in broker.client_sessions():
            if session.is_durable or session.will is not None:
                dealt[place_of(session.client_id, count)].append((broker, session))
    return [_records(brokers[0], sessions) for sessions in dealt]


def _number_anew(brokers: Sequence[Broker]) -> None:
    """Give messages and subscriptions numbers that none of the other brokers uses."""
    numbers: dict[int, int] = {}
    for broker in brokers:
        for session in broker.client_sessions():
            for message in _held(session):
                message.number = numbers.setdefault(id(message), len(numbers) + 1)
    everyone = [
        one
        for broker in brokers
        for session in broker.client_sessions()
        for one in session.subscriptions.values()
    ]
    everyone.sort(key=lambda one: one.number)
    for number, one in enumerate(everyone, 1):
        one.number = number


def _held(session: Session) -> Iterator[Message]:
    yield from session.in_flight.values()
    for message, _ in session.queue:
        yield message


def _records(first: Broker, sessions: list[tuple[Broker, Session]]) -> Iterator[bytes]:
    journal = Journal(keeps_ages=bool(first.spaces))
    size = 0
    for message in first.retained_messages():
        if not message.head.topic.startswith(b"$SYS/", 2):
            journal.retained(message)
            size += message.size
            if size >= _PORTION_BYTES:
                size = 0
                yield journal.take()
    yield journal.take()
    told: set[int] = set()
    for number, (broker, session) in enumerate(sessions, 1):
        held = HELD_NOTE + session.number.to_bytes(4, "little")
        session.number = number
        tell_session(session, journal, told)
        for key, value in broker.notes.starting_with(held):
            moved = HELD_NOTE + number.to_bytes(4, "little") + key[len(held) :]
            journal.note(moved, value, broker.notes.until(key))
        yield journal.take()
