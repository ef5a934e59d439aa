"""SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11), and retained messages for new subscriptions.

Read next: `retained_copies.py` (retained messages), `../content/subscriptions.py` (conditions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from nearcast.broker.access import refusal_text
from nearcast.broker.event_log_hooks import note_subscription
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session, SessionSubscription
from nearcast.broker.slices import Work
from nearcast.broker.state import BrokerState
from nearcast.broker.subscribe.retained_copies import NewSubscriberCopies
from nearcast.model import MisuseError, SubscribeRequest, read_subscription, split_prefixes
from nearcast.model.requests import SELECTING, SUBSCRIBING, Pair, decoded
from nearcast.model.wording import shown
from nearcast.mqtt import (
    FilterRequest,
    MqttProtocolError,
    Properties,
    ProtocolVersion,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    check_topic_filter,
    encode_packet,
    split_shared,
)

_NOW = ("$retained", "now")
_OF_SPACES = frozenset(SUBSCRIBING) - {"$retained"}

_Reader = Callable[[str, tuple[Pair, ...], tuple[Pair, ...]], SubscribeRequest]
"""Parses the conditions on a bare filter, from its prefixes and from user properties."""


class SubscribeHandler:
    """Adds and removes subscriptions."""

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery
        self._copies = NewSubscriberCopies(state, delivery)

    def subscribe(self, connection: Connection, packet: Subscribe) -> Work:
        """Add each filter, send SUBACK [MQTT-3.8.4-1], then retained messages. May be interrupted.

        A filter that is refused does not affect the others [MQTT-3.8.4-5].
        """
        session = connection.session
        assert session is not None
        self._refresh_figures(packet)
        state, ask = self._state, self._reader()
        codes: list[int] = []
        complaint = ""
        newcomers: dict[
            str, tuple[SessionSubscription, int]
        ] = {}  # by text: a filter that is listed twice counts once
        patient: dict[str, Callable[[], None]] = {}  # retained delivery may be deferred
        waiting: dict[str, SessionSubscription] = {}
        for place, written in enumerate(packet.requests):
            yield
            try:
                self._check_number(place)
                allowed = replace(written, qos=min(written.qos, state.settings.maximum_qos))
                request, now = self._without_wish(allowed, packet.properties)
                with self._refused_if_it_fails():
                    subscription, is_new = self._add(session, request, packet.properties, ask)
            except MqttProtocolError as error:
                complaint = complaint or str(error)
                codes.append(error.reason if connection.version >= 5 else 0x80)
                continue
            codes.append(request.qos)
            complaint = complaint or self._warning(subscription, packet.properties.user_properties)
            text, born = subscription.text, state.retained.sequence
            is_new = is_new or text in newcomers or text in patient
            for each in (newcomers, patient, waiting):
                each.pop(text, None)
            if self._may_wait(subscription):
                patient[text] = partial(
                    self._copies.send_or_hold,
                    subscription,
                    born,
                    request.retain_handling,
                    is_new,
                    now,
                )
                if _wants_retained(request, subscription, is_new):
                    waiting[text] = subscription
            elif _wants_retained(request, subscription, is_new):
                newcomers[text] = subscription, born
            elif subscription.inside is not None and state.selections is not None:
                state.selections.crossing.entered(subscription)  # it was sent those before
        self._answer(connection, Suback(packet.packet_id, tuple(codes)), complaint)
        for subscription, born in newcomers.values():
            yield
            with state.failures.kept("sending retained messages"):
                self._copies.send(subscription, born)
        for send_or_hold in patient.values():
            yield
            with state.failures.kept("sending retained messages"):
                send_or_hold()
        for subscription in (*(one for one, _ in newcomers.values()), *waiting.values()):
            state.network.newcomer(subscription)

    @contextmanager
    def _refused_if_it_fails(self) -> Iterator[None]:
        """Turn an unexpected exception in the block into a refusal of the current filter."""
        try:
            yield
        except MqttProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - a mistake of ours, with one filter
            self._state.failures.take("changing a subscription", error)
            told = "an internal error; it is logged"
            reason = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
            raise MqttProtocolError(told, reason=reason) from None

    def _check_number(self, place: int) -> None:
        """Refuse a filter beyond the number that one packet may have."""
        most = self._state.settings.max_filters
        if place >= most:
            raise self._over_limit("filters", f"filter {place + 1} of a packet", most)

    def _over_limit(self, name: str, found: str, most: int) -> MqttProtocolError:
        """Return the refusal of a subscription that would exceed a limit of the configuration."""
        self._state.counters.refused_subscriptions += 1
        return MqttProtocolError(
            found,
            reason=ReasonCode.QUOTA_EXCEEDED,
            where="SUBSCRIBE",
            expected=f"at most {most}",
            todo=f"Raise limits.{name} in the broker's configuration.",
        )

    def _refresh_figures(self, packet: Subscribe) -> None:
        """Refresh the metrics under `$SYS` if the client subscribes to them."""
        if any("$SYS/" in request.topic_filter for request in packet.requests):
            self._state.refresh_figures()

    def bring(self, one: SessionSubscription, message: Message, version: int) -> None:
        """Send a message retained at another node, which did not know of this subscription.

        `version` is the one that `keep_message` returned.
        """
        if not one.is_in_effect:
            return
        if one.inside is not None and version:
            one.inside[message.topic_text()] = version
        if one.identifier:
            message = message.variant(retain=True, identifiers=(one.identifier,))
        self._delivery.enqueue_retained(one.session, message, min(message.head.qos, one.qos))
        self._delivery.pump(one.session)

    def _without_wish(
        self, request: FilterRequest, properties: Properties
    ) -> tuple[FilterRequest, bool]:
        """Return a filter without `$retained/now`, and whether that prefix or property was given.

        Within a space it is part of the conditions and stays.
        """
        if self._state.deferral.deferred is None:
            return request, False
        text = self._bare_of_wish(request.topic_filter)
        if text != request.topic_filter:
            return replace(request, topic_filter=text), True
        return request, _NOW in properties.user_properties

    def _bare_of_wish(self, text: str) -> str:
        if self._state.deferral.deferred is None or "$retained/now/" not in text:
            return text
        shared, prefixes, bare = self._split(text)
        if prefixes != (_NOW,) or self._state.router.spaces.meets(bare):
            return text
        return shared + bare

    def _may_wait(self, subscription: SessionSubscription) -> bool:
        """Return whether retained messages of this subscription may be deferred."""
        if subscription.group or subscription.selection is not None:
            return False
        return self._state.deferral.concerns(subscription.topic_filter)

    def _add(
        self, session: Session, request: FilterRequest, properties: Properties, ask: _Reader
    ) -> tuple[SessionSubscription, bool]:
        """Check a filter and put its subscription into effect; return it and whether it is new."""
        state = self._state
        shared, prefixes, bare = self._split(request.topic_filter)
        settings = state.settings
        check_topic_filter(
            bare, max_levels=settings.max_topic_levels, printable=settings.printable_topics
        )
        self._check_allowed(session, request.topic_filter, bare)
        asked = self._asked(bare, prefixes, properties.user_properties, ask)
        text = request.topic_filter
        if asked is not None and asked.is_selective:
            text = shared + asked.subscription.identity
        subscription = SessionSubscription(
            session,
            text,
            shared[len("$share/") : -1] if shared else "",
            bare,
            request.qos,
            no_local=request.no_local,
            retain_as_published=request.retain_as_published,
            identifier=next(iter(properties.subscription_identifiers), 0),
        )
        subscription.crosses = request.retain_handling != 2
        if asked is not None:
            selection = asked.subscription if asked.is_selective else None
            subscription.select(
                selection,
                explain=asked.explain,
                label=asked.label,
                weight=asked.weight,
                shares_m=asked.shares_m,
            )
        old = session.subscriptions.get(text)
        if old is None:
            self._check_limits(session, subscription)
        if asked is None:
            state.record_subscription(subscription, old)
        else:
            with _as_refusal("$where: " if asked.subscription.where else ""):
                state.record_subscription(subscription, old)
        session.subscriptions[text] = subscription
        note_subscription(self._state, subscription, subscription.qos, is_added=True)
        return subscription, old is None

    def _check_limits(self, session: Session, new: SessionSubscription) -> None:
        """Refuse a subscription beyond the limit of one client or of all clients together."""
        state = self._state
        settings = state.settings
        if len(session.subscriptions) >= settings.max_client_subscriptions:
            most = settings.max_client_subscriptions
            raise self._over_limit("client_subscriptions", "one more of this client", most)
        if state.subscriptions >= settings.max_subscriptions:
            most = settings.max_subscriptions
            raise self._over_limit("subscriptions", "one more of all clients", most)
        if new.inside is not None and len(session.moving) >= settings.max_client_near:
            most = settings.max_client_near
            raise self._over_limit("client_near", "one more $near of this client", most)

    def _split(self, text: str) -> tuple[str, tuple[Pair, ...], str]:
        """Return the share prefix, the conditions in front of the filter, and the bare filter."""
        if text[:1] != "$":
            return "", (), text
        shared = split_shared(text)
        share_prefix = text[: len(text) - len(shared.topic_filter)]
        with _as_refusal():
            prefixes, bare = split_prefixes(shared.topic_filter, SELECTING)
        return share_prefix, prefixes, bare

    def _check_allowed(self, session: Session, text: str, bare: str) -> None:
        """Check the bare filter against the ACL rules; positions are private by default."""
        state = self._state
        if session.is_onlooker and text.startswith("$share/"):
            why = f"{shown(text)} is refused: a page would take messages from the others"
            raise MqttProtocolError(why, reason=ReasonCode.NOT_AUTHORIZED)
        is_position = bare.partition("/")[0] == POSITION_TOPIC
        if is_position and not state.router.spaces.shows_positions:
            state.observer.subscribe_denied(session, text)
            why = f"{shown(text)} is refused: positions are private"
            todo = 'positions = "public" in a [[space]] shows them.'
            raise MqttProtocolError(why, reason=ReasonCode.NOT_AUTHORIZED, todo=todo)
        if not state.access.may_subscribe(session.user_name, session.client_id, bare):
            state.observer.subscribe_denied(session, text)
            why = refusal_text(state.access, session, bare, subscribes=True)
            raise MqttProtocolError(why, reason=ReasonCode.NOT_AUTHORIZED)

    def _reader(self) -> _Reader:
        """Return a parser of conditions that parses equal ones once per packet."""
        known: dict[tuple[Pair, ...], SubscribeRequest] = {}

        def read(
            bare: str, prefixes: tuple[Pair, ...], pairs: tuple[Pair, ...]
        ) -> SubscribeRequest:
            key = (*prefixes, ("", ""), *pairs)
            asked = known.get(key)
            if asked is None:
                self._check_length((*prefixes, *pairs))
                asked = known[key] = read_subscription(bare, (*decoded(prefixes), *pairs))
            if asked.subscription.topic_filter == bare:
                return asked
            return replace(asked, subscription=replace(asked.subscription, topic_filter=bare))

        return read

    def _check_length(self, pairs: tuple[Pair, ...]) -> None:
        """Refuse conditions that would take long to parse: no other client is served meanwhile."""
        size = sum(len(value) for name, value in pairs if name in SELECTING)
        most = self._state.settings.max_where_bytes
        if size > most:
            raise self._over_limit("where", f"a selection of {size} characters", most)

    def _asked(
        self, bare: str, prefixes: tuple[Pair, ...], pairs: tuple[Pair, ...], read: _Reader
    ) -> SubscribeRequest | None:
        """Return the parsed conditions on a filter that overlaps a space; None elsewhere."""
        if not (prefixes or pairs):
            return None
        meets = self._state.router.spaces.meets(bare)
        if not (meets or prefixes):
            return None
        with _as_refusal():
            if not meets:
                raise MisuseError(
                    f"the filter {shown(bare)}",
                    where=prefixes[0][0],
                    expected="one that meets the topics of a declared space",
                    todo="Declare a [[space]] for these topics, or subscribe without it.",
                )
            return read(bare, prefixes, pairs)

    def _warning(self, one: SessionSubscription, pairs: tuple[Pair, ...]) -> str:
        """Return a warning for the client about a subscription that was accepted, or ""."""
        ignored = [name for name, _ in pairs if name in _OF_SPACES]
        if ignored and not self._state.router.spaces.meets(one.topic_filter):
            told = self._no_space(one, ignored)
            self._state.observer.selection_ignored(one.session, one.topic_filter, told)
            return told
        if one.inside is None or one.session.position is not None:
            return ""
        self._state.counters.near_without_position += 1
        return (
            "$near: your position is not known, so nothing is near you yet; "
            'publish {"lon": …, "lat": …} to $position'
        )

    def _no_space(self, subscription: SessionSubscription, ignored: list[str]) -> str:
        """Return the warning that conditions were ignored: the filter overlaps no space."""
        text = shown(subscription.topic_filter)
        return (
            f"{', '.join(ignored)}: ignored, so every message comes, because {text} meets the "
            f"topics of no [[space]]; {self._state.router.spaces.declared}"
        )

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> Work:
        """Remove filters and send UNSUBACK with a reason code for each. May be interrupted.

        With conditions (as prefix or property) that one subscription goes [MQTT-3.10.4-1]; a bare
        filter removes also all subscriptions with conditions on it.
        """
        session = connection.session
        assert session is not None
        codes: list[int] = []
        complaint, ask = "", self._reader()
        for written in packet.topic_filters:
            yield
            try:
                text = self._bare_of_wish(written)
                found = self._named(session, text, packet.properties.user_properties, ask)
                self._remove_all(connection, found)
            except MqttProtocolError as error:
                complaint = complaint or str(error)
                codes.append(error.reason)
                continue
            codes.append(ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._answer(connection, Unsuback(packet.packet_id, tuple(codes)), complaint)

    def _named(
        self, session: Session, text: str, pairs: tuple[Pair, ...], ask: _Reader
    ) -> list[SessionSubscription]:
        """Return the subscriptions that an UNSUBSCRIBE names."""
        state = self._state
        plain = session.subscriptions.get(text)
        if state.selections is None:
            return [plain] if plain is not None else []
        shared, prefixes, bare = self._split(text)
        chosen = tuple(pair for pair in pairs if pair[0] in SELECTING)
        asked = self._asked(bare, prefixes, chosen, ask)
        if asked is not None and asked.is_selective:
            subscription = session.subscriptions.get(shared + asked.subscription.identity)
            return [subscription] if subscription is not None else []
        group = shared[len("$share/") : -1] if shared else ""
        found = state.selections.on_filter(session, group, bare)
        return found if plain is None else [plain, *found]

    def _remove_all(self, connection: Connection, found: list[SessionSubscription]) -> None:
        """Remove the subscriptions of a filter; refuse the filter where that fails.

        An UNSUBACK of MQTT 3.1.1 cannot refuse: there the failure ends the connection.
        """
        can_refuse = connection.version >= ProtocolVersion.V5
        with self._refused_if_it_fails() if can_refuse else nullcontext():
            for one in found:
                self.remove(one)

    def remove(self, subscription: SessionSubscription) -> None:
        """Remove a subscription of a client, with what it is still owed of retained messages."""
        state, session = self._state, subscription.session
        if session.is_durable:  # first: it may raise
            state.journal.unsubscribed(session.number, subscription.text)
        state.deferral.unsubscribed(subscription)
        del session.subscriptions[subscription.text]
        session.copies.pop(subscription.text, None)
        state.remove_subscription(subscription)
        note_subscription(state, subscription, 0, is_added=False)

    def _answer(self, connection: Connection, answer: Suback | Unsuback, complaint: str) -> None:
        """Send SUBACK or UNSUBACK, with a reason string if the client wants one and it fits.

        In a cluster a SUBACK waits until the other nodes know the new subscriptions.
        """
        version = ProtocolVersion(connection.version)
        packet = encode_packet(answer, version)
        if complaint and connection.tells_problems:
            told = replace(answer, properties=Properties(reason_string=complaint))
            longer = encode_packet(told, version)
            packet = longer if connection.fits(longer) else packet
        if not connection.fits(packet):  # dropped, as if it were sent [MQTT-3.1.2-25]
            self._state.counters.dropped_too_large += 1
            return
        if isinstance(answer, Unsuback):
            self._state.send(connection, packet)
        else:
            self._state.network.when_known(lambda: self._send_answer(connection, packet))

    def _send_answer(self, connection: Connection, packet: bytes) -> None:
        if connection.is_open and not connection.is_closing:
            self._state.send(connection, packet)


def _wants_retained(
    request: FilterRequest, subscription: SessionSubscription, is_new: bool
) -> bool:
    """Return whether retained messages are sent, by Retain Handling [MQTT-3.3.1-9]."""
    if subscription.group or request.retain_handling == 2:
        return False
    return request.retain_handling == 0 or is_new


@contextmanager
def _as_refusal(place: str = "") -> Iterator[None]:
    """Turn a mistake in conditions into the answer to their SUBSCRIBE."""
    try:
        yield
    except MisuseError as problem:
        raise MqttProtocolError(
            problem.found,
            reason=ReasonCode.TOPIC_FILTER_INVALID,
            where=place + problem.where,
            expected=problem.expected,
            todo=problem.todo,
        ) from None
