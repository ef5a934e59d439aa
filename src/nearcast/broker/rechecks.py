"""Rules and users that change: every session is checked again under the new ones, in slices.

What a session got under earlier rules (subscriptions, queued messages, retained messages on their
way, a connection) stays only as far as the new ones allow it. Wills and publications are checked
when they are published. So no delivery has to be checked: what must not be delivered has no
subscription any more.

Read next: `access.py`, `slices.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nearcast.broker.access import Access
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.broker.session.lifecycle import Lifecycle
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.mqtt import ReasonCode

NO_USER = "this user may no longer log in"
UNCHECKED = -1


class Rechecks:
    """Checks sessions again when rules or users have changed.

    Contract: once the work that `begin` starts is done, nobody is connected who may not log in, and
    no session has a subscription or a waiting message that its client may not read. A session whose
    client connects before its turn is checked then (`needs`, `one`).

    Complexity: O(subscriptions + distinct topics of waiting messages) questions about rules.
    """

    def __init__(
        self,
        state: BrokerState,
        delivery: Delivery,
        lifecycle: Lifecycle,
        remove: Callable[[SessionSubscription], None],
    ) -> None:
        self._state = state
        self._delivery = delivery
        self._lifecycle = lifecycle
        self._remove = remove

    def begin(self, access: Access) -> None:
        """Put new rules into effect for all requests, and check what was granted before them."""
        state = self._state
        state.access = access
        state.rules += 1  # with it all cached verdicts about topics are void
        for connection in state.connections:
            if not connection.is_peer:  # peers have checked their clients
                is_restricted = access.is_restricted(connection)
                if is_restricted != (connection.permits is not None):
                    connection.permits = {} if is_restricted else None
        state.slices.begin(self._all(state.rules))

    def needs(self, session: Session, user_name: str | None) -> bool:
        """Return whether a session has to be checked before this user gets it."""
        return session.rules != self._state.rules or session.user_name != user_name

    def at_once(self) -> None:
        """Check all sessions now: those of a journal, before anything is delivered to them."""
        deque(self._all(self._state.rules), maxlen=0)

    def _all(self, rules: int) -> Work:
        """Check all connections and sessions, unless the rules change again meanwhile."""
        state = self._state
        for connection in list(state.connections):
            is_relayed = connection.relay is not None and not connection.is_closing
            if is_relayed and not state.access.keeps(connection.user_name, connection):
                self._lifecycle.disconnect(connection, ReasonCode.NOT_AUTHORIZED, NO_USER)
            yield
        for session in list(state.sessions.values()):
            if state.rules != rules:
                return
            if not (session.is_peer or session.is_over):
                with state.failures.kept("checking a session under new rules"):
                    yield from self.one(session, session.user_name)
            yield

    def one(self, session: Session, user_name: str | None) -> Work:
        """Check one session, which belongs to this user from now on."""
        rules, session.user_name = self._state.rules, user_name
        session.rules = UNCHECKED  # until this is done, also if it is abandoned half-way
        if self.end_if_gone(session):
            return
        for subscription in list(session.subscriptions.values()):
            if session.subscriptions.get(subscription.text) is subscription:
                self._check(session, subscription)
            yield
        yield from self._check_waiting(session)
        session.rules = rules

    def end_if_gone(self, session: Session) -> bool:
        """End a session whose user may no longer log in; return whether it has ended."""
        if self._may_stay(session):
            return False
        self._lifecycle.dismiss(session, NO_USER)
        return True

    def _may_stay(self, session: Session) -> bool:
        link = session.link
        if link is not None and link.forwarded is not None:
            return True  # the node that relays the client decides
        return self._state.access.keeps(session.user_name, link)

    def _check(self, session: Session, subscription: SessionSubscription) -> None:
        """Remove a subscription that its client may not have any more."""
        topic_filter = subscription.topic_filter
        is_hidden = (
            topic_filter.partition("/")[0] == POSITION_TOPIC
            and not self._state.router.spaces.shows_positions
        )
        if is_hidden or not self._may_read(session, topic_filter):
            self._remove(subscription)
            self._state.observer.subscription_revoked(session, subscription.text)

    def _may_read(self, session: Session, topic_filter: str) -> bool:
        access = self._state.access
        return access.may_subscribe(session.user_name, session.client_id, topic_filter)

    def _check_waiting(self, session: Session) -> Work:
        """Drop the waiting messages of topics that the client may not read any more."""
        waiting = [message for message, _ in session.queue]
        waiting += session.in_flight.values()
        topics = {message.head.topic for message in waiting}
        forbidden: set[bytes] = set()
        for topic in topics:
            if not self._may_read(session, topic[2:].decode()):
                forbidden.add(topic)
            yield
        if forbidden:
            self._delivery.drop_topics(session, forbidden)
