"""Deferred retained delivery: the broker's side of `nearcast.retained` (paper 4).

Only a broker with a topic that is not `immediate` has a `DeferredRetained`; other brokers do not
even import this module. `RetainedDelivery` decides; this module adds what that class does not know:
sessions, queues, the event log, and which live message reaches which subscriber.

Most publications pass in runs that only look at their route. A topic on which a new subscriber
waits has a `DeferredRoute` in the route cache (`deferred_routes.py`): its messages pass one by one,
through `before_live`.

Content subscriptions (`$where`, `$near`, `$retained`) get retained messages at once: whether the
next message will match them is not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from nearcast.broker.event_log_hooks import aside
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.retained import created
from nearcast.broker.retained.deferred_routes import DeferredRouter
from nearcast.broker.retained.hooks import RetainedHooks
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.settings import HELD_NOTE, RetainedSettings
from nearcast.broker.state import BrokerState
from nearcast.broker.timers import Timer
from nearcast.index.topic_filters import filters_overlap, topic_matches
from nearcast.model.errors import MisuseError
from nearcast.retained import (
    SEND_NOW,
    Answer,
    Handling,
    LearningBounds,
    Mode,
    Outlook,
    Policies,
    Release,
    RetainedCopy,
    RetainedDelivery,
    TopicPolicy,
    TopicSetting,
    Wait,
    Weights,
    shipped_policy,
)

if TYPE_CHECKING:
    from nearcast.retained import DecisionProcess
    from nearcast.retained.answers import Subscriber
    from nearcast.retained.groups import TopicGroups

Waiter = tuple[Session, str]  # a waiting subscription: its session and its text

_PLAIN = TopicSetting()
_MOST_KNOWN_TOPICS = 100_000
_HANDLINGS = tuple(Handling)
_FOREVER_MS = (1 << 63) - 1
_SAME_INSTANT_S = 1e-5  # tolerance: milliseconds are not exact as seconds in floating point


class DeferredRetained(RetainedHooks):
    """Defers retained copies and releases them in time.

    Contract: call `before_live` before a message is retained and delivered; `subscribed` after a
    subscription has taken effect, `unsubscribed` before it is removed; `disconnected` once a
    session has lost its connection and before anything is queued for it.

    Complexity: that of `RetainedDelivery`, and O(settings) for a topic not seen lately.
    """

    def __init__(
        self,
        state: BrokerState,
        delivery: Delivery,
        router: DeferredRouter,
        settings: Sequence[RetainedSettings],
    ) -> None:
        self.deferred = self
        self._state = state
        self._delivery = delivery
        self._router = router
        self._settings = [(section.topics, _topic_setting(section)) for section in settings]
        self._filters = [text for text, one in self._settings if one.mode is not Mode.IMMEDIATE]
        self._known: dict[str, TopicSetting] = {}
        self._concerned: dict[str, bool] = {}
        self._armed_ms: int | None = None
        self._timer: Timer | None = None
        self._core = RetainedDelivery(
            self.setting_of,
            policies=Policies(general=shipped_policy()),
            learning=LearningBounds(tables_max=sum(one.tables for one in settings)),
        )

    # --- settings ---------------------------------------------------------------------------

    def setting_of(self, topic: str) -> TopicSetting:
        """Return a topic's setting: that of the first filter that matches, or plain MQTT."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _MOST_KNOWN_TOPICS:
                self._known.clear()
            fitting = (one for text, one in self._settings if topic_matches(text, topic))
            known = self._known[topic] = next(fitting, _PLAIN)
            space = self._state.router.spaces.of_topic(topic)
            if space is not None and space.retained == "now":
                known = self._known[topic] = _PLAIN
        return known

    def concerns(self, topic_filter: str) -> bool:
        """Return whether retained messages of some matching topic may be deferred."""
        known = self._concerned.get(topic_filter)
        if known is None:
            if len(self._concerned) >= _MOST_KNOWN_TOPICS:
                self._concerned.clear()
            known = any(filters_overlap(one, topic_filter) for one in self._filters)
            self._concerned[topic_filter] = known
        return known

    def load(self, policies: Policies) -> None:
        """Replace the policies, and release copies that need not wait any longer."""
        self._let_go(self._core.load(policies, self._now_s))
        self._arm()

    def next_to_learn(self, now_ms: int) -> tuple[str, DecisionProcess] | None:
        """Return a topic whose table is to be learned; the caller passes the result to `adopt`."""
        return self._core.next_to_learn(now_ms / 1000)

    def adopt(self, topic: str, policy: TopicPolicy) -> bool:
        """Use a learned table for a topic; return False if it is no longer wanted."""
        return self._core.adopt(topic, policy)

    def experience_text(self) -> str:
        """Return what topic groups have learned, as the text of a file."""
        from nearcast.retained.experience_file import experience_to_text

        return experience_to_text(self._core.groups, self._core.policies)

    def restore_experience(self, text: str, where: str) -> int:
        """Use what an earlier process learned; return the number of groups of today's blocks."""
        from nearcast.retained.experience_file import experience_from_text

        blocks = {one.block for _, one in self._settings}
        found = experience_from_text(text, self._core.policies, where)
        kept = [(name, one) for name, one in found if name.block in blocks]
        for name, one in kept:
            self._core.groups.restore(name, one)
        return len(kept)

    @property
    def groups(self) -> TopicGroups:
        """The topic groups and their experience."""
        return self._core.groups

    @property
    def waiting(self) -> int:
        """The number of copies that are deferred now."""
        return sum(self._core.waiting(topic) for topic in self._router.held)

    @property
    def _now_s(self) -> float:
        return self._state.now_ms / 1000

    # --- new subscriptions ------------------------------------------------------------------

    def subscribed(
        self,
        subscription: SessionSubscription,
        found: Sequence[Message],
        *,
        handling: int,
        is_new: bool,
        now: bool,
    ) -> list[Message]:
        """Return the retained messages that are sent to a subscription at once.

        `now` says that the subscriber asked for that. Expired messages must not be among `found`.
        """
        sent = []
        asked, now_s = _HANDLINGS[handling], self._now_s
        for message in found:
            topic = message.topic_text()
            if self.setting_of(topic).mode is Mode.IMMEDIATE:
                is_sent = asked is Handling.SEND or (asked is Handling.SEND_IF_NEW and is_new)
            else:
                answer = self._core.on_subscribe(
                    topic,
                    (subscription.session, subscription.text),
                    now_s,
                    copy=self._copy(topic, message, now_s),
                    qos=subscription.qos,
                    handling=asked,
                    existed=not is_new,
                    wish_now=now,
                )
                is_sent = answer is SEND_NOW
                self._decided(subscription, topic, answer)
            if is_sent:
                sent.append(message)
        if len(sent) < len(found):
            self._arm()
        return sent

    def _copy(self, topic: str, message: Message, now_s: float) -> RetainedCopy:
        left_s = math.inf
        if message.expires_at_ms:
            left_s = (message.expires_at_ms - self._state.now_ms) / 1000
        return RetainedCopy(message.head.qos, self._age_s(topic, message, now_s), left_s)

    def _age_s(self, topic: str, message: Message, now_s: float) -> float:
        arrived_s = now_s - self._core.age_s(topic, now_s)
        return created.age_s(message, self.setting_of(topic).created, arrived_s, now_s)

    def complaint(self, message: Message, publisher: Session | None) -> str:
        """Return why the creation time of a message to be retained is not used; else nothing."""
        topic = message.topic_text()
        setting = self.setting_of(topic)
        if setting.mode is Mode.IMMEDIATE:
            return ""
        try:
            created.created_s(message, setting.created, self._now_s)
        except MisuseError as problem:
            self._state.counters.retained_created_ignored += 1
            told = f"{problem}. Its age counts from its arrival."
            if publisher is not None:
                self._state.observer.instructions_ignored(publisher, topic, told)
            return told
        return ""

    def outlook(self, topic: str, message: Message) -> Outlook:
        """Return what a new subscriber of a topic would get now, and why; nothing changes."""
        return self._core.outlook(topic, self._now_s, self._age_s(topic, message, self._now_s))

    def _decided(self, subscription: SessionSubscription, topic: str, answer: Answer) -> None:
        """Count, journal and log the decision about one retained message."""
        counters = self._state.counters
        if isinstance(answer, Wait):
            counters.retained_held += 1
            self._router.hold(topic)
            self._remember(subscription, topic)
            self._tell(subscription.session, topic, "HELD_BACK")
        elif answer is SEND_NOW:
            if topic in self._router.held:
                self._ended((subscription.session, subscription.text), topic)
            self._tell(subscription.session, topic, "SENT_NOW")
        else:
            if topic in self._core.topics_of((subscription.session, subscription.text)):
                self._remember(subscription, topic)  # it still waits, perhaps at another QoS
            self._tell(subscription.session, topic, "NOT_SENT", "as asked for")

    # --- live messages ----------------------------------------------------------------------

    def before_live(
        self,
        message: Message,
        publisher: Session | None,
        *,
        retain: bool,
        reaches_all: bool = True,
        counts: bool = True,
    ) -> None:
        """End all waiting on a message's topic; send first the copies it does not replace.

        `reaches_all`: whether every plain subscriber gets the message. `counts`: whether it counts
        as evidence for the topic's rates.
        """
        topic = message.topic_text()
        is_held = topic in self._router.held
        if not (is_held or retain):
            return
        waiters = [_waiter(one) for one in self._core.waiters(topic)] if is_held else []
        missed = [
            one for one in waiters if not reaches_all or self._misses(one, message, publisher)
        ]
        first = self._core.on_publish(
            topic,
            self._now_s,
            retain=retain,
            qos=message.head.qos,
            missed=missed,
            counts=counts,
        )
        self._replaced(topic, waiters, {one for each in first for one in each.subscribers})
        self._let_go(first)
        if retain and not message.payload:
            self._core.on_topic_deleted(topic, self._now_s)

    def _misses(self, waiter: Waiter, message: Message, publisher: Session | None) -> bool:
        """Return whether a live message might not reach a waiting subscription; True in doubt."""
        session, text = waiter
        link, one = session.link, session.subscriptions.get(text)
        if link is None or one is None or (one.no_local and session is publisher):
            return True
        size, settings, state = message.size, self._state.settings, self._state
        if message.expires_at_ms and (link.is_paused or session.queue or session.room < 1):
            return True
        if link.max_packet_bytes and size > link.max_packet_bytes:
            return True
        return (
            max(session.held_bytes, link.outbox_bytes) + size > settings.session_queue_bytes
            or state.held_bytes + size > settings.total_queue_bytes
        )

    def _replaced(self, topic: str, waiters: list[Waiter], first: set[Subscriber]) -> None:
        """Count and log the copies that the live message replaces."""
        for waiter in waiters:
            if waiter not in first:
                self._state.counters.retained_replaced += 1
                self._ended(waiter, topic)
                self._tell(waiter[0], topic, "REPLACED", "live message")

    def kept_elsewhere(self, message: Message) -> None:
        """Prepare for a message of another node that is about to replace a topic's retained one.

        A subscription that still waits did not get it live: the old copy is sent now.
        """
        self.before_live(message, None, retain=True, reaches_all=False)

    def forgotten(self, topic: str) -> None:
        """Stop all waiting on a topic whose retained message has expired."""
        for one in self._core.on_topic_deleted(topic, self._now_s):
            waiter = _waiter(one)
            self._ended(waiter, topic)
            self._tell(waiter[0], topic, "NOT_SENT", "forgotten")

    # --- end of subscriptions and connections -----------------------------------------------

    def unsubscribed(self, one: SessionSubscription) -> None:
        """Forget a subscription; copies deferred for it are not sent."""
        if one.group or one.selection is not None or not self.concerns(one.topic_filter):
            return
        waiter = (one.session, one.text)
        for topic in self._core.topics_of(waiter):
            self._tell(one.session, topic, "NOT_SENT", "unsubscribed")
        self._stop(waiter, session_kept=False)
        for message in self._state.retained.find(one.topic_filter):
            self._core.on_unsubscribe(message.topic_text(), waiter, self._now_s)

    def disconnected(self, session: Session, *, is_kept: bool) -> None:
        """End a session's waiting; copies of QoS 1 and 2 are queued if the session lives on."""
        for text in session.subscriptions:
            self._let_go(self._stop((session, text), session_kept=is_kept))

    def _stop(self, waiter: Waiter, *, session_kept: bool) -> list[Release]:
        topics = self._core.topics_of(waiter)
        if not topics:
            return []
        releases = self._core.on_disconnect(waiter, self._now_s, session_kept=session_kept)
        for topic in topics:
            self._ended(waiter, topic)
        return releases

    # --- release ----------------------------------------------------------------------------

    def _let_go(self, releases: Iterable[Release]) -> None:
        for release in releases:
            topic, reason = release.topic, release.reason.value
            message = self._state.retained.get(topic)
            for one in release.subscribers:
                waiter = _waiter(one)
                self._ended(waiter, topic)
                self._send(waiter, message, topic, reason)

    def _send(self, waiter: Waiter, message: Message | None, topic: str, reason: str) -> None:
        state, (session, text) = self._state, waiter
        one = session.subscriptions.get(text)
        if message is None or one is None:
            self._tell(session, topic, "NOT_SENT", reason)
            return
        if 0 < message.expires_at_ms <= state.now_ms:
            state.counters.dropped_expired += 1
            self._tell(session, topic, "NOT_SENT", "expired")
            return
        state.counters.retained_released += 1
        self._tell(session, topic, "RELEASED", reason)
        message, qos = _with_identifier(message, one), min(message.head.qos, one.qos)
        if session.link is None:
            # Queued as a live message: it stays, whatever is retained when the client is back.
            with aside(state):
                self._delivery.hand_over(session, [message], qos)
        else:
            self._delivery.enqueue_retained(session, message, qos)
            self._delivery.pump(session)

    def _ended(self, waiter: Waiter, topic: str) -> None:
        """Undo the hold on the topic and the journal's note once a subscription waits no more."""
        if not self._core.holds(topic):
            self._router.let_go(topic)
        key = _note_key(waiter, topic)
        if key in self._state.notes:
            self._state.set_note(key, b"", 0)

    # --- time -------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Set the timer for the next copy that is due."""
        wake_s = self._core.wake_at()
        if wake_s is None:
            return
        due_ms = math.ceil((wake_s - _SAME_INSTANT_S) * 1000)
        due_ms = max(due_ms, self._state.now_ms + 1)  # later than now, or it would loop forever
        if self._armed_ms is None or due_ms < self._armed_ms:
            self._armed_ms = due_ms
            self._state.timers.cancel(self._timer)
            self._timer = self._state.timers.at(due_ms, self._wake, due_ms)

    def _wake(self, due_ms: int) -> None:
        assert due_ms == self._armed_ms
        self._armed_ms = None
        instant_s, wake_s = self._now_s, self._core.wake_at()
        if wake_s is not None and wake_s <= instant_s + _SAME_INSTANT_S:
            instant_s = max(instant_s, wake_s)
        self._let_go(self._core.advance(instant_s))
        self._arm()

    # --- journal ----------------------------------------------------------------------------

    def _remember(self, subscription: SessionSubscription, topic: str) -> None:
        """Journal a deferred copy of QoS 1 or 2, which must survive a crash."""
        state = self._state
        if not subscription.session.is_durable:
            return
        message = state.retained.get(topic)
        if message is None:
            return
        key = _note_key((subscription.session, subscription.text), topic)
        if min(message.head.qos, subscription.qos):
            state.set_note(key, b"", _FOREVER_MS)
        elif key in state.notes:  # it waited at QoS 1 or 2, and has subscribed again at QoS 0
            state.set_note(key, b"", 0)

    # --- the event log ----------------------------------------------------------------------

    def _tell(self, session: Session, topic: str, choice: str, reason: str = "") -> None:
        log = self._state.log
        if log is None:
            return
        from nearcast.eventlog.records import LoggedRates, RetainedChoice

        rates = None
        estimate = self._core.estimate(topic, self._now_s)
        if estimate is not None:
            rates = LoggedRates(*estimate[:3])
        log.retained_decision(
            session.client_id,
            topic,
            RetainedChoice[choice],
            self._state.now_ms,
            rates=rates,
            policy=self.setting_of(topic).mode.value,
            reason=reason,
        )


def _topic_setting(one: RetainedSettings) -> TopicSetting:
    weights = Weights(one.omega, one.message_cost)
    return TopicSetting(
        Mode(one.mode), weights, one.hold_max_s, one.tables > 0, one.topics, one.created
    )


def _waiter(subscriber: Subscriber) -> Waiter:
    return cast("Waiter", subscriber)


def _note_key(waiter: Waiter, topic: str) -> bytes:
    session, text = waiter
    return HELD_NOTE + session.number.to_bytes(4, "little") + f"{text}\0{topic}".encode()


def queue_held(state: BrokerState, delivery: Delivery) -> None:
    """Queue the copies that were deferred when an earlier broker process ended."""
    by_number = {one.number: one for one in state.sessions.values()}
    for key in [one for one in state.notes if one.startswith(HELD_NOTE)]:
        number = int.from_bytes(key[len(HELD_NOTE) :][:4], "little")
        try:
            text, _, topic = key[len(HELD_NOTE) + 4 :].decode().partition("\0")
        except UnicodeDecodeError as problem:
            state.set_note_aside(key, problem)
            continue
        state.set_note(key, b"", 0)
        session, message = by_number.get(number), state.retained.get(topic)
        subscription = None if session is None else session.subscriptions.get(text)
        if subscription is None or message is None or 0 < message.expires_at_ms <= state.now_ms:
            continue
        qos = min(message.head.qos, subscription.qos)
        if qos:
            delivery.hand_over(subscription.session, [_with_identifier(message, subscription)], qos)


def _with_identifier(message: Message, subscription: SessionSubscription) -> Message:
    """Return a retained message with the subscription identifier of a subscription."""
    if not subscription.identifier:
        return message
    return message.variant(retain=True, identifiers=(subscription.identifier,))
