"""PUBACK, PUBREC, PUBREL and PUBCOMP in runs, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.session.connection import Connection
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.mqtt import (
    MqttProtocolError,
    PacketType,
    Properties,
    PublishAnswer,
    ReasonCode,
    encode_packet,
)
from nearcast.mqtt.decode import decode_packet
from nearcast.mqtt.errors import MalformedPacketError
from nearcast.mqtt.packets import ProtocolVersion
from nearcast.mqtt.wire import TWO_BYTES

_QUOTA: Final = int(ReasonCode.QUOTA_EXCEEDED)
_UNKNOWN: Final = int(ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
_STARTS: Final = {first: bytes((first, 2)) for first in (0x40, 0x50, 0x62, 0x70)}
_MOST_RUN: Final = 4_000  # acknowledgements per run: between runs other clients are served


class PublishOutcome(NamedTuple):
    """The outcome of a publication: a reason code, and a reason string for its publisher."""

    reason: int
    text: str = ""


class Acks:
    """Handles the acknowledgements of clients, and acknowledges their publications.

    Like publications, acknowledgements of one kind are handled in runs. `take` gets the buffer and
    the bounds of a whole packet in it, and returns the position behind the run.
    """

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery
        self._receive_maximum = state.settings.receive_maximum
        self._takers: dict[int, Callable[[Connection, Session, list[int], int], None]] = {
            0x40: self._take_pubacks,
            0x50: self._take_pubrecs,
            0x62: self._take_pubrels,
            0x70: self._take_pubcomps,
        }

    # --- acknowledgements to clients ----------------------------------------------------

    def answer_all(
        self, connection: Connection, first: int, identifiers: list[bytes], reason: int
    ) -> None:
        """Send one acknowledgement per identifier, all with one reason code.

        Success has the same short form in both versions of MQTT.
        """
        if reason and connection.version >= 5:
            start, end = bytes((first, 3)), bytes((reason,))
            data = b"".join([start + one + end for one in identifiers])
        else:
            start = _STARTS[first]
            data = start + start.join(identifiers)
        state = self._state
        state.send(connection, data)
        state.counters.others_sent += len(identifiers) - 1

    def tell(
        self, connection: Connection, first: int, identifier: bytes, outcome: PublishOutcome
    ) -> None:
        """Acknowledge one publication, with a reason string if the client wants it and it fits."""
        if outcome.text and connection.version >= 5 and connection.tells_problems:
            number = identifier[0] << 8 | identifier[1]
            properties = Properties(reason_string=outcome.text)
            answer = PublishAnswer(PacketType(first >> 4), number, outcome.reason, properties)
            packet = encode_packet(answer)
            if connection.fits(packet):
                self._state.send(connection, packet)
                return
        self.answer_all(connection, first, [identifier], outcome.reason)

    def answer_each(
        self, connection: Connection, first: int, identifiers: list[bytes], refused: list[bool]
    ) -> None:
        """Send one acknowledgement per identifier; one that is refused exceeds a quota."""
        for one, is_refused in zip(identifiers, refused, strict=True):
            self.answer_all(connection, first, [one], _QUOTA if is_refused else 0)

    def remember_incoming(
        self, connection: Connection, session: Session, numbers: list[int]
    ) -> None:
        """Record QoS 2 identifiers until their PUBREL; refuse more than Receive Maximum."""
        total = len(session.incoming) + len(numbers)
        if connection.version >= 5 and total > self._receive_maximum:
            raise MqttProtocolError(
                f"{total} QoS 2 messages at once",
                reason=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                expected=f"at most {self._receive_maximum}",
            )
        if session.is_durable:  # first: it may raise
            self._state.journal.incoming(session.number, numbers)
        session.incoming.update(numbers)

    def forget_incoming(self, session: Session, numbers: list[int]) -> None:
        """Free QoS 2 identifiers of a client: the next PUBLISH with one is a new message."""
        if session.is_durable:  # first: it may raise
            self._state.journal.released(session.number, numbers)
        session.incoming.difference_update(numbers)

    # --- acknowledgements from clients -------------------------------------------------

    def take(self, connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
        """Handle a PUBACK, PUBREC, PUBREL or PUBCOMP and those of the same kind behind it."""
        session = connection.session
        assert session is not None
        first = data[position]
        take = self._takers[first]
        if stop - body != 2:
            packet = decode_packet(first, data[body:stop], ProtocolVersion(connection.version))
            assert isinstance(packet, PublishAnswer)
            take(connection, session, [packet.packet_id], packet.reason)
            return stop
        if stop == len(data):
            self._take_lone(connection, session, first, read_packet_id(data, body, stop))
            return stop
        start = data[position:body]
        last = min(len(data) - 4, stop + 4 * _MOST_RUN)
        numbers = [read_packet_id(data, body, stop)]
        while stop <= last and data.startswith(start, stop):
            numbers.append(read_packet_id(data, stop + 2, stop + 4))
            stop += 4
        take(connection, session, numbers, 0)
        return stop

    def _take_lone(self, connection: Connection, session: Session, first: int, number: int) -> None:
        """Handle one acknowledgement: what most reads of a fleet are."""
        self._state.counters.others_received += 1
        delivery = self._delivery
        if first == 0x50:
            is_known = delivery.record_lone(session, number)
            self._answer_lone(connection, 0x62, number, is_known=is_known)
        elif first == 0x62:
            is_known = number in session.incoming
            if is_known:
                self.forget_incoming(session, [number])
            self._answer_lone(connection, 0x70, number, is_known=is_known)
        else:
            if first == 0x70:
                delivery.complete_lone(session, number)
            elif number in session.exact:
                raise _puback_for_qos_2()
            else:
                delivery.settle_lone(session, number)
            if session.has_more:
                delivery.pump(session)

    def _answer_lone(
        self, connection: Connection, first: int, number: int, *, is_known: bool
    ) -> None:
        reason = 0 if is_known else _UNKNOWN
        self.answer_all(connection, first, [TWO_BYTES[number]], reason)

    def _take_pubacks(
        self, _connection: Connection, session: Session, numbers: list[int], _reason: int
    ) -> None:
        """Complete QoS 1 deliveries; a PUBACK for a QoS 2 message is a protocol error."""
        self._state.counters.others_received += len(numbers)
        if session.exact and any(number in session.exact for number in numbers):
            raise _puback_for_qos_2()
        self._delivery.settle(session, numbers)
        if session.has_more:
            self._delivery.pump(session)

    def _take_pubrecs(
        self, connection: Connection, session: Session, numbers: list[int], reason: int
    ) -> None:
        """Release QoS 2 messages and send PUBRELs [MQTT-4.3.3-4]; a failure ends the delivery.

        A PUBREC says nothing about a QoS 1 message, whatever its reason.
        """
        self._state.counters.others_received += len(numbers)
        delivery = self._delivery
        if reason >= 0x80:
            delivery.settle(session, [number for number in numbers if number in session.exact])
            delivery.pump(session)
            return
        known = [TWO_BYTES[number] for number in delivery.record(session, numbers)]
        if known:
            self.answer_all(connection, 0x62, known, 0)
        if len(known) < len(numbers):
            self._tell_unknown(connection, 0x62, numbers, known)

    def _take_pubrels(
        self, connection: Connection, session: Session, numbers: list[int], _reason: int
    ) -> None:
        """Free QoS 2 identifiers of the client and send PUBCOMPs [MQTT-4.3.3-11]."""
        self._state.counters.others_received += len(numbers)
        held = [number for number in dict.fromkeys(numbers) if number in session.incoming]
        self.forget_incoming(session, held)
        known = [TWO_BYTES[number] for number in held]
        if known:
            self.answer_all(connection, 0x70, known, 0)
        if len(known) < len(numbers):
            self._tell_unknown(connection, 0x70, numbers, known)

    def _take_pubcomps(
        self, _connection: Connection, session: Session, numbers: list[int], _reason: int
    ) -> None:
        """Complete QoS 2 deliveries."""
        self._state.counters.others_received += len(numbers)
        self._delivery.complete(session, numbers)
        if session.has_more:
            self._delivery.pump(session)

    def _tell_unknown(
        self, connection: Connection, first: int, numbers: list[int], known: list[bytes]
    ) -> None:
        """Answer the identifiers that are not in use with Packet Identifier Not Found."""
        answered = set(known)
        unknown = [TWO_BYTES[one] for one in numbers if TWO_BYTES[one] not in answered]
        if unknown:
            self.answer_all(connection, first, unknown, _UNKNOWN)


def read_packet_id(data: bytes, at: int, stop: int) -> int:
    """Return the packet identifier at a position; it must be present and not 0."""
    if at + 2 > stop:
        raise MalformedPacketError("the end of the packet", expected="a packet identifier")
    number = data[at] << 8 | data[at + 1]
    if not number:
        raise zero_identifier()
    return number


def zero_identifier() -> MqttProtocolError:
    """Return the error for packet identifier 0 [MQTT-2.2.1-3]."""
    return MqttProtocolError("packet identifier 0", expected="1 … 65,535")


def _puback_for_qos_2() -> MqttProtocolError:
    return MqttProtocolError("PUBACK for a QoS 2 message", expected="PUBREC")
