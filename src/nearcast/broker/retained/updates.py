"""Updates of retained messages: in the store, in the journal, and by place in a space."""

from __future__ import annotations

from nearcast.broker.content.subscriptions import ContentSubscriptions
from nearcast.broker.persistence.unapplied_records import retained_aside
from nearcast.broker.publish.message import Message
from nearcast.broker.publish.properties import reread_properties
from nearcast.broker.retained.store import PLACE_BYTES
from nearcast.broker.state import BrokerState
from nearcast.model import Event, MisuseError


def retain_message(state: BrokerState, message: Message, event: Event | None = None) -> int:
    """Retain a client's message on all nodes; return the version as `keep_message`.

    Above the limits it is not retained, and `was_refused` is set.
    """
    if message.payload and not _has_room(state, message):
        state.counters.refused_retained += 1
        message.was_refused = True
        return 0
    if state.network.is_joined and not message.head.topic.startswith(b"$SYS/", 2):
        state.network.retained(message)
    return keep_message(state, message, event)


def _has_room(state: BrokerState, message: Message) -> bool:
    """Return whether a message may be retained; the broker's own (`$SYS`) always may."""
    store, settings, size = state.retained, state.settings, message.size
    most_bytes = settings.max_retained_bytes
    is_far_off = store.weight + size + PLACE_BYTES * settings.max_topic_levels <= most_bytes
    if is_far_off and store.count < settings.max_retained:
        return True
    topic = message.topic_text()
    if topic.startswith("$SYS/"):
        return True
    is_known = store.get(topic) is not None
    is_few = is_known or store.count < settings.max_retained
    return is_few and store.weight_with(topic, size) <= most_bytes


def keep_message(state: BrokerState, message: Message, event: Event | None = None) -> int:
    """Store a topic's retained message; return its version if it has a place, else 0.

    An empty payload deletes the topic's message.
    """
    topic = message.topic_text()
    kept = message.variant(retain=True)
    if state.journal.is_kept and not topic.startswith("$SYS/"):
        if message.payload:
            state.journal.retained(kept)
        elif state.retained.get(topic) is not None:
            state.journal.forgotten(message.head.topic)
    state.retained.put(topic, kept)
    if state.selections is None:
        return 0
    if event is None or not message.payload:
        state.selections.crossing.forget(topic)
        return 0
    return state.selections.crossing.put(topic, event, kept).version


def forget_retained(state: BrokerState, topic: str) -> None:
    """Delete a topic's retained message, because it has expired."""
    state.deferral.forgotten(topic)
    state.retained.forget(topic)
    if state.selections is not None:
        state.selections.crossing.forget(topic)


def place_all_retained(state: BrokerState, selections: ContentSubscriptions) -> None:
    """Index all retained messages by place, after a restart."""
    for message in state.retained.all():
        try:
            event = event_of(state, selections, message)
            if event is not None:
                selections.crossing.put(event.topic, event, message)
        except Exception as problem:  # noqa: BLE001 - one message must not keep all others away
            state.aside.append(retained_aside(message, problem))


def event_of(
    state: BrokerState, selections: ContentSubscriptions, message: Message
) -> Event | None:
    """Return a stored message as an event of its space, or None."""
    topic = message.topic_text()
    settings = state.router.spaces.of_topic(topic)
    if settings is None:
        return None
    properties = reread_properties(message.head.properties)
    try:
        area = properties.request.area
        reader = selections.readers[settings.space.name]
        return reader.read(topic, message.payload, properties.user, area)
    except MisuseError:
        return None
