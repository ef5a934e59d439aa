"""`$nearcast/explain`: questions about deliveries, asked and answered over MQTT 5."""

from __future__ import annotations

import json

from nearcast.model import MisuseError
from nearcast.model.wording import shown
from nearcast.mqtt import ReasonCode
from nearcast.node.answers import Outcome
from nearcast.node.asking import checked_response_topic, reply_to
from nearcast.node.delivery import Delivery
from nearcast.node.explain import Question, explain
from nearcast.node.message import Message
from nearcast.node.publish_properties import PublishProperties
from nearcast.node.session import Session
from nearcast.node.state import NodeState
from nearcast.node.values import Pairs, read_json

_FORBIDDEN = int(ReasonCode.NOT_AUTHORIZED)
_FORM = '{"client": …, "topic": …, "payload": …, "properties": {…}, "qos": 0, "publisher": …}'


class Explaining:
    """Answers those who may know: an answer speaks of others' subscriptions and places.

    With rules, they decide who may publish to `$nearcast/explain`. Without, users who have proven
    their name may, and whoever is on this machine.
    """

    def __init__(self, state: NodeState, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    def take(
        self, session: Session | None, message: Message, properties: PublishProperties
    ) -> Outcome:
        """Take a question and publish its answer to the response topic."""
        if session is None or not self._may_ask(session):
            return Outcome(_FORBIDDEN, "$nearcast/explain: for users with a proven name only")
        topic = checked_response_topic(self._state, session, properties.response_topic)
        try:
            document = explain(self._state, question_of(message.payload))
        except MisuseError as problem:
            document = {"problem": str(problem)}
        reply_to(self._state, self._delivery, topic, document, message.head.qos, properties)
        return Outcome(0)

    def _may_ask(self, session: Session) -> bool:
        if self._state.access.has_rules() or session.user_name is not None:
            return True  # the rules have been asked
        link = session.link
        if link is None:  # a will: nobody knows any longer where its client was
            return False
        host = link.peer.rpartition(":")[0].strip("[]")
        return host in ("", "::1", "localhost") or host.startswith(("127.", "::ffff:127."))


def question_of(payload: bytes) -> Question:
    """Return the question that a JSON document asks."""
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
    return Question(
        asked["client"],
        asked["topic"],
        _payload(asked.get("payload", "")),
        _pairs(asked.get("properties", {})),
        qos,
        publisher,
    )


def _payload(value: object) -> bytes:
    """Return a payload given as text, or as the JSON that it is."""
    if not isinstance(value, str):
        return json.dumps(value).encode()
    return encoded(value, "payload")


def encoded(text: str, where: str) -> bytes:
    """Return text in UTF-8; a lone surrogate, which JSON can write, has no such form."""
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
