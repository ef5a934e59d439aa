"""User properties that have no effect: their publisher is told."""

from __future__ import annotations

from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import PublishProperties
from nearcast.broker.session.session import Session
from nearcast.broker.state import BrokerState
from nearcast.model.wording import shown


def ignored_instructions(
    state: BrokerState,
    publisher: Session | None,
    message: Message,
    properties: PublishProperties | None,
) -> str:
    """Return a warning if user properties have no effect, because the topic is in no space."""
    if publisher is None or properties is None or not properties.user:
        return ""
    names = properties.of_spaces
    if not names:
        return ""
    topic = message.topic_text()
    told = (
        f"{', '.join(names)}: ignored, because {shown(topic)} is a topic of no [[space]]; "
        f"{state.router.spaces.declared}"
    )
    state.observer.instructions_ignored(publisher, topic, told)
    return told
