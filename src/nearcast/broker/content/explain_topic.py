"""`$nearcast/explain`: questions about deliveries, asked and answered over MQTT 5.

Read next: `explain.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace

from nearcast.broker.content.explain import ExplainQuestion, explain
from nearcast.broker.content.match_preview import checked_response_topic, reply_to
from nearcast.broker.content.probes import sees_positions
from nearcast.broker.publish.acks import PublishOutcome
from nearcast.broker.publish.delivery import Delivery
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import PublishProperties
from nearcast.broker.retained.explain import explain_newcomer
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.model import MisuseError
from nearcast.model.event_decoder import Pairs, read_json
from nearcast.model.wording import shown
from nearcast.mqtt import ReasonCode
from nearcast.mqtt.topics import has_wildcard

_FORBIDDEN = int(ReasonCode.NOT_AUTHORIZED)
_FORM = '{"client": …, "topic": …, "payload": …, "properties": {…}, "qos": 0, "publisher": …}'


class ExplainTopic:
    """Answers clients that may know: an answer reveals other clients' subscriptions and places.

    With ACL rules, these decide who may publish to `$nearcast/explain`. Without, users with a
    proven name may, and clients on this machine. What depends on a private position is told only to
    those who may publish to `$nearcast/explain/positions`: without rules to nobody.
    """

    def __init__(self, state: BrokerState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def take(
        self, session: Session | None, message: Message, properties: PublishProperties
    ) -> PublishOutcome:
        """Handle a question: publish its answer to the response topic."""
        if session is None or not self._may_ask(session):
            return PublishOutcome(
                _FORBIDDEN, "$nearcast/explain: for users with a proven name only"
            )
        topic = checked_response_topic(self._state, session, properties.response_topic)
        try:
            document = self._answer(session, message.payload)
        except MisuseError as problem:
            document = {"problem": str(problem)}
        reply_to(self._state, self._delivery, topic, document, message.head.qos, properties)
        return PublishOutcome(0)

    def _answer(self, session: Session, payload: bytes) -> dict[str, object]:
        asked = read_json(payload)
        if isinstance(asked, dict) and "newcomer" in asked:
            return explain_newcomer(self._state, _topic_of(asked["newcomer"]))
        sees = sees_positions(self._state, session)
        question = replace(question_of(payload), asker=session.client_id, sees_positions=sees)
        return explain(self._state, question)

    def _may_ask(self, session: Session) -> bool:
        link = session.link
        if link is None:  # a will, which nobody sends
            return False
        if session.user_name is not None or self._state.access.is_restricted(link):
            return True  # the ACL rules were checked before
        host = link.address.rpartition(":")[0].strip("[]")
        return host in ("", "::1", "localhost") or host.startswith(("127.", "::ffff:127."))


def _topic_of(value: object) -> str:
    if not isinstance(value, str) or not value or has_wildcard(value):
        raise MisuseError(shown(value), where="newcomer", expected="a topic, without + and #")
    encoded(value, "newcomer")
    return value


def question_of(payload: bytes) -> ExplainQuestion:
    """Parse a question from JSON."""
    asked = read_json(payload)
    if not isinstance(asked, dict):
        raise MisuseError(shown(asked), where="payload", expected=_FORM)
    for name in ("client", "topic"):
        if not isinstance(asked.get(name), str):
            raise MisuseError(shown(asked.get(name)), where=name, expected=f"text, as in {_FORM}")
        encoded(asked[name], name)
    publisher, qos = asked.get("publisher"), asked.get("qos", 0)
    if publisher is not None and not isinstance(publisher, str):
        raise MisuseError(shown(publisher), where="publisher", expected="a client identifier")
    if isinstance(qos, bool) or qos not in (0, 1, 2):
        raise MisuseError(shown(qos), where="qos", expected="0, 1 or 2")
    return ExplainQuestion(
        asked["client"],
        asked["topic"],
        _payload(asked.get("payload", "")),
        _pairs(asked.get("properties", {})),
        qos,
        publisher,
    )


def _payload(value: object) -> bytes:
    """Return a payload that is given as text or as JSON."""
    if not isinstance(value, str):
        return json.dumps(value).encode()
    return encoded(value, "payload")


def encoded(text: str, where: str) -> bytes:
    """Return text in UTF-8; raises MisuseError for a lone surrogate, which JSON can express."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MisuseError(shown(text), where=where, expected="text without surrogates") from None


def _pairs(value: object) -> Pairs:
    items = list(value.items()) if isinstance(value, dict) else value
    if isinstance(items, list) and all(_is_pair(one) for one in items):
        return tuple((str(name), str(text)) for name, text in items)
    raise MisuseError(shown(value), where="properties", expected="an object of texts, or pairs")


def _is_pair(one: object) -> bool:
    return (
        isinstance(one, (list, tuple))
        and len(one) == 2
        and all(isinstance(part, (str, int, float)) for part in one)
    )
