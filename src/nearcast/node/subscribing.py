"""SUBSCRIBE and UNSUBSCRIBE (sections 3.8 - 3.11), and retained messages for newcomers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from nearcast.model import MisuseError, SubscribeRequest, read_subscription, split_prefixes
from nearcast.model.requests import SELECTING, SUBSCRIBING, Pair, decoded
from nearcast.model.wording import listed, shown
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
from nearcast.node.access import refusal_text
from nearcast.node.connection import Connection
from nearcast.node.delivery import Delivery
from nearcast.node.message import Message
from nearcast.node.noting import aside
from nearcast.node.retaining import forget_retained
from nearcast.node.routes import POSITION_TOPIC
from nearcast.node.session import Session, Subscription
from nearcast.node.spaces import SpaceSettings
from nearcast.node.state import NodeState

_NOW = ("$retained", "now")
_OF_SPACES = frozenset(SUBSCRIBING) - {"$retained"}


class Subscribing:
    """Adds and removes subscriptions."""

    def __init__(self, state: NodeState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """Take each filter on its own; answer, then send what is retained."""
        session = connection.session
        assert session is not None
        self._refresh_figures(packet)
        codes: list[int] = []
        complaint = ""
        newcomers: list[Subscription] = []
        waiting: list[Subscription] = []
        patient: list[Callable[[], None]] = []  # those who may have to wait
        for written in packet.requests:
            try:
                allowed = replace(written, qos=min(written.qos, self._state.settings.maximum_qos))
                request, now = self._without_wish(allowed, packet.properties)
                subscription, is_new = self._add(session, request, packet.properties)
            except MqttProtocolError as error:
                complaint = complaint or str(error)
                codes.append(error.reason if connection.version >= 5 else 0x80)
                continue
            codes.append(request.qos)
            complaint = complaint or self._warning(subscription, packet.properties.user_properties)
            if self._may_wait(subscription):
                patient.append(
                    partial(self._send_or_hold, subscription, request.retain_handling, is_new, now)
                )
                if _wants_retained(request, subscription, is_new):
                    waiting.append(subscription)
            elif _wants_retained(request, subscription, is_new):
                newcomers.append(subscription)
            elif subscription.inside is not None and self._state.selections is not None:
                self._state.selections.crossing.entered(subscription)  # it has had those
        self._answer(connection, Suback(packet.packet_id, tuple(codes)), complaint)
        self._serve(connection, newcomers, patient)
        if self._state.network is not None:
            for subscription in (*newcomers, *waiting):
                self._state.network.newcomer(subscription)

    def _serve(
        self,
        connection: Connection,
        newcomers: list[Subscription],
        patient: list[Callable[[], None]],
    ) -> None:
        """Send what is retained to new subscriptions."""
        try:
            for one in newcomers:
                if one.selection is None:
                    self._send_retained(one.session, connection, one)
                else:
                    self._send_selected(one.session, one)
            for send_or_hold in patient:
                send_or_hold()
        except Exception as error:  # noqa: BLE001 - of a message that somebody else has retained
            self._state.failures.take("sending retained messages", error)

    def _refresh_figures(self, packet: Subscribe) -> None:
        """Let `$SYS` be of now for a client that subscribes to it."""
        if any("$SYS/" in one.topic_filter for one in packet.requests):
            self._state.refresh_figures()

    def bring(self, one: Subscription, message: Message, version: int) -> None:
        """Send what was retained elsewhere before it was known there that somebody wants it.

        `version` is that of `keep_message`.
        """
        if one.inside is not None and version:
            one.inside[message.topic_text()] = version
        self._queue_retained(one.session, one, [message])

    def _without_wish(
        self, request: FilterRequest, properties: Properties
    ) -> tuple[FilterRequest, bool]:
        """Return a filter without `$retained/now`, and whether it or a property says so.

        Within a space that is a selection, and none of our business here.
        """
        if self._state.holding is None:
            return request, False
        text = self._bare_of_wish(request.topic_filter)
        if text != request.topic_filter:
            return replace(request, topic_filter=text), True
        return request, _NOW in properties.user_properties

    def _bare_of_wish(self, text: str) -> str:
        if self._state.holding is None or "$retained/now/" not in text:
            return text
        shared, prefixes, bare = self._split(text)
        if prefixes != (_NOW,) or self._state.router.spaces.meets(bare):
            return text
        return shared + bare

    def _may_wait(self, one: Subscription) -> bool:
        holding = self._state.holding
        if holding is None or one.group or one.selection is not None:
            return False
        return holding.concerns(one.topic_filter)

    def _add(
        self, session: Session, request: FilterRequest, properties: Properties
    ) -> tuple[Subscription, bool]:
        state = self._state
        shared, prefixes, bare = self._split(request.topic_filter)
        settings = state.settings
        check_topic_filter(
            bare, max_levels=settings.max_topic_levels, printable=settings.printable_topics
        )
        self._check_allowed(session, request.topic_filter, bare)
        asked = self._asked(bare, prefixes, properties.user_properties)
        text = request.topic_filter
        if asked is not None and asked.is_selective:
            text = shared + asked.subscription.identity
        subscription = Subscription(
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
                selection, explain=asked.explain, label=asked.label, weight=asked.weight
            )
        old = session.subscriptions.get(text)
        if asked is None:
            state.add_subscription(subscription, old)
        else:
            with _as_refusal("$where: " if asked.subscription.where else ""):
                state.add_subscription(subscription, old)
        session.subscriptions[text] = subscription
        self._tell_added(subscription)
        return subscription, old is None

    def _split(self, text: str) -> tuple[str, tuple[Pair, ...], str]:
        """Return the share prefix, the selections in front of the filter, and the bare filter."""
        if text[:1] != "$":
            return "", (), text
        shared = split_shared(text)
        share_prefix = text[: len(text) - len(shared.topic_filter)]
        with _as_refusal():
            prefixes, bare = split_prefixes(shared.topic_filter, SELECTING)
        return share_prefix, prefixes, bare

    def _check_allowed(self, session: Session, text: str, bare: str) -> None:
        """Ask the rules about the bare filter; positions are private."""
        state = self._state
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

    def _asked(
        self, bare: str, prefixes: tuple[Pair, ...], pairs: tuple[Pair, ...]
    ) -> SubscribeRequest | None:
        """Return what is asked for on a filter that meets a space; None elsewhere."""
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
            return read_subscription(bare, (*decoded(prefixes), *pairs))

    def _tell_added(self, one: Subscription) -> None:
        state, session = self._state, one.session
        if state.journal is not None and session.is_durable:
            state.journal.subscribed(one)
        if state.log is not None:
            state.log.subscription(
                state.now_ms,
                session.client_id,
                one.text,
                one.qos,
                is_added=True,
                no_local=one.no_local,
            )

    def _warning(self, one: Subscription, pairs: tuple[Pair, ...]) -> str:
        """Return what the client should know about a subscription that was taken."""
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

    def _no_space(self, one: Subscription, ignored: list[str]) -> str:
        """Return that selections were ignored: no space has topics that the filter meets."""
        spaces = [f"{each.space.name} ({each.space.topic_filter})" for each in self._spaces()]
        text = shown(one.topic_filter)
        return (
            f"{', '.join(ignored)}: ignored, so every message comes, because {text} meets the "
            f"topics of no [[space]]; declared: {listed(spaces) or 'none'}"
        )

    def _spaces(self) -> tuple[SpaceSettings, ...]:
        return self._state.router.spaces.all

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """Remove filters; answer for each whether it was there.

        With selections, in either form, that one goes; a bare filter takes all of its own along.
        """
        session = connection.session
        assert session is not None
        codes: list[int] = []
        complaint = ""
        for written in packet.topic_filters:
            try:
                text = self._bare_of_wish(written)
                found = self._named(session, text, packet.properties.user_properties)
            except MqttProtocolError as error:
                complaint = complaint or str(error)
                codes.append(error.reason)
                continue
            for one in found:
                self._remove(one)
            codes.append(ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        self._answer(connection, Unsuback(packet.packet_id, tuple(codes)), complaint)

    def _named(self, session: Session, text: str, pairs: tuple[Pair, ...]) -> list[Subscription]:
        """Return the subscriptions that an UNSUBSCRIBE names."""
        state = self._state
        plain = session.subscriptions.get(text)
        if state.selections is None:
            return [plain] if plain is not None else []
        shared, prefixes, bare = self._split(text)
        chosen = tuple(pair for pair in pairs if pair[0] in SELECTING)
        asked = self._asked(bare, prefixes, chosen)
        if asked is not None and asked.is_selective:
            one = session.subscriptions.get(shared + asked.subscription.identity)
            return [one] if one is not None else []
        group = shared[len("$share/") : -1] if shared else ""
        found = state.selections.on_filter(session, group, bare)
        return found if plain is None else [plain, *found]

    def _remove(self, one: Subscription) -> None:
        state, session = self._state, one.session
        if state.holding is not None:
            state.holding.unsubscribed(one)
        del session.subscriptions[one.text]
        state.remove_subscription(one)
        if state.journal is not None and session.is_durable:
            state.journal.unsubscribed(session.number, one.text)
        if state.log is not None:
            state.log.subscription(state.now_ms, session.client_id, one.text, 0, is_added=False)

    def _answer(self, connection: Connection, answer: Suback | Unsuback, complaint: str) -> None:
        """Answer, with a reason string where there is one and the client wants and can take it."""
        version = ProtocolVersion(connection.version)
        packet = encode_packet(answer, version)
        if complaint and connection.tells_problems:
            told = replace(answer, properties=Properties(reason_string=complaint))
            longer = encode_packet(told, version)
            packet = longer if connection.fits(longer) else packet
        if not connection.fits(packet):  # [MQTT-3.1.2-25]: as if it were sent
            self._state.counters.dropped_too_large += 1
            return
        network = self._state.network
        if network is None or isinstance(answer, Unsuback):
            self._state.send(connection, packet)
        else:
            network.when_known(lambda: self._send_answer(connection, packet))

    def _send_answer(self, connection: Connection, packet: bytes) -> None:
        if connection.is_open and not connection.is_closing:
            self._state.send(connection, packet)

    # --- retained -------------------------------------------------------------------------

    def _send_retained(
        self, session: Session, connection: Connection, subscription: Subscription
    ) -> None:
        state = self._state
        is_bulk = not (subscription.qos or subscription.identifier) and connection.is_plain
        if is_bulk and not session.queue:
            chunk, count, mortal = state.retained.chunk(
                subscription.topic_filter, connection.version
            )
            if len(chunk) <= state.settings.session_queue_bytes // 2:
                if count:
                    with aside(state):
                        self._delivery.append_to_all([session], chunk, count)
                if mortal:
                    self._queue_retained(session, subscription, mortal)
                return
        found = list(state.retained.find(subscription.topic_filter))
        self._queue_retained(session, subscription, found)

    def _send_or_hold(self, one: Subscription, handling: int, is_new: bool, now: bool) -> None:
        """Send what is retained, but for what a policy holds back."""
        state = self._state
        assert state.holding is not None
        alive: list[Message] = []
        for message in list(state.retained.find(one.topic_filter)):
            if 0 < message.expires_at_ms <= state.now_ms:
                forget_retained(state, message.topic_text())
            else:
                alive.append(message)
        wanted = state.holding.subscribed(one, alive, handling=handling, is_new=is_new, now=now)
        if len(wanted) == len(alive) and one.session.link is not None:
            self._send_retained(one.session, one.session.link, one)  # as ever, and quicker
        elif wanted:
            self._queue_retained(one.session, one, wanted)

    def _send_selected(self, session: Session, subscription: Subscription) -> None:
        """Send what is retained and wanted, nothing else."""
        selections = self._state.selections
        assert selections is not None
        found = selections.crossing.wanted(subscription)
        if subscription.inside is not None:
            subscription.inside.update((one.topic, one.version) for one in found)
        self._queue_retained(session, subscription, [one.message for one in found])

    def _queue_retained(
        self, session: Session, subscription: Subscription, found: list[Message]
    ) -> None:
        numbers = (subscription.identifier,) if subscription.identifier else ()
        state = self._state
        for message in found:
            if message.expires_at_ms and message.expires_at_ms <= state.now_ms:
                forget_retained(state, message.topic_text())
                continue
            dressed = message
            if numbers:
                dressed = message.variant(retain=True, identifiers=numbers)
            qos = min(message.head.qos, subscription.qos)
            self._delivery.enqueue_retained(session, dressed, qos)
        self._delivery.pump(session)


def _wants_retained(request: FilterRequest, subscription: Subscription, is_new: bool) -> bool:
    if subscription.group or request.retain_handling == 2:
        return False
    return request.retain_handling == 0 or is_new


@contextmanager
def _as_refusal(place: str = "") -> Iterator[None]:
    """Turn a mistake in a selection into the answer to its SUBSCRIBE."""
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
