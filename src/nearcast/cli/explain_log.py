"""Why a client got a message, or did not: from a broker's event log.

The log has the events (without their MQTT properties), their deliveries, the subscriptions and
positions of clients over time. So it tells for certain whether a message was delivered, and which
step of the selection prevented it. Where all steps pass and yet nothing was delivered, it names the
remaining causes, which are not logged.

A message in causal order crosses from log to log: with the logs of several nodes, the explanation
follows it to the node that the client is connected to, and tells whom it waited for there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.config import Configuration, SpaceSection
from nearcast.index.topic_filters import topic_matches
from nearcast.model import (
    And,
    Event,
    Expression,
    MisuseError,
    Subscription,
    distance_m,
    names_in,
    where_text,
)
from nearcast.model.errors import EnvironmentProblem, UnknownNameError
from nearcast.model.event_decoder import EventDecoder
from nearcast.model.requests import parse_identity

if TYPE_CHECKING:
    from nearcast.eventlog.log_files import Segment

Position = tuple[float, float]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One condition that was checked; `ok` is None where the log does not decide."""

    step: str
    ok: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a message was delivered to a client, and what decided it."""

    client: str
    topic: str
    event: Row
    delivered: bool
    because: str
    steps: tuple[Step, ...]


class LogFolder:
    """The tables of an event log, including segments that are still open."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    def rows(self, table: str, *conditions: tuple[str, str, object]) -> list[Row]:
        """Return the rows that satisfy all conditions, by sequence number."""
        import pyarrow.parquet as pq

        found: list[Row] = []
        for path in (segment.path(table) for segment in self._segments):
            if path.exists():
                found += pq.read_table(path, filters=list(conditions) or None).to_pylist()
        return sorted(found, key=lambda row: row["sequence"])


@contextmanager
def opened(*directories: Path) -> Iterator[LogFolder]:
    """Open event logs. Open segments are read from copies, as the broker still writes them."""
    from nearcast.eventlog.log_files import finished, segments_of

    for directory in directories:
        if not directory.is_dir():
            raise EnvironmentProblem(
                "there is no such directory",
                where=str(directory),
                todo='It is "eventlog" in the data directory, if [log] events is not "off".',
            )
    with ExitStack() as stack:
        segments = [one for directory in directories for one in segments_of(str(directory))]
        yield LogFolder([stack.enter_context(finished(one)) for one in segments])


def explain_from_log(
    log: LogFolder, configuration: Configuration, client: str, event: Row
) -> Explanation:
    """Return why a logged event reached a client or not."""
    order, event_there = _ordered(log, client, event)
    if event_there is None:
        assert order is not None
        because = f"{order.step}: {order.detail}"
        return Explanation(client, event["topic"], _shown_event(event), False, because, (order,))
    event = event_there
    here = (("node", "==", event["node"]),)
    number = event["sequence"]
    past = (*here, ("client", "==", client), ("sequence", "<", number))
    receivers = _receivers(log.rows("deliveries", *here, ("sequence", "==", number)))
    places = log.rows("positions", *past)
    case = _Case(
        client,
        event,
        _space_of(configuration, event["topic"]),
        (places[-1]["lon"], places[-1]["lat"]) if places else None,
    )
    steps = case.steps(held(log.rows("subscriptions", *past)))
    is_selected = any(step.step == "selection" and step.ok for step in steps)
    last = _handed_over(client, receivers, is_selected)
    decisive = last if last.ok or is_selected else next((s for s in steps if s.ok is False), last)
    return Explanation(
        client,
        event["topic"],
        _shown_event(event),
        client in receivers,
        f"{decisive.step}: {decisive.detail}",
        (*steps, *([] if order is None else [order]), last),
    )


def _ordered(log: LogFolder, client: str, event: Row) -> tuple[Step | None, Row | None]:
    """Return what causal order did to an event, and the event at the client's node.

    The step is None without causal order, the event if it did not get to that node.
    """
    at = (("node", "==", event["node"]), ("sequence", "==", event["sequence"]))
    notes = [one for one in log.rows("causal", *at) if one["step"] in ("sent", "delivered")]
    if not notes:
        return None, event
    names = ("group", "sender", "stamp_us")
    told = log.rows("causal", *((name, "==", notes[-1][name]) for name in names))
    node = _node_of(log, client) or event["node"]
    here = {one["step"]: one for one in told if one["node"] == node}
    if "discarded" in here:
        return Step("order", False, _discarded(here["discarded"])), None
    if "delivered" in here:
        found = log.rows(
            "events", ("node", "==", node), ("sequence", "==", here["delivered"]["sequence"])
        )
        step = Step("order", True, _waited(log, here.get("held"), here["delivered"]))
        return step, found[0] if found else event
    if node == event["node"]:
        return None, event
    sent = next((one["detail"] for one in told if one["step"] == "sent"), "")
    if node not in sent.split(","):
        text = f"{client} was at {node}, which did not subscribe to it: it was sent to {sent}"
    elif "held" in here:
        text = f"it waits at {node} for {here['held']['detail']}"
    else:
        text = f"it was sent to {node}, and the log of {node} does not have it"
    return Step("order", False, text), None


def _node_of(log: LogFolder, client: str) -> str | None:
    """Return the node where a client last subscribed."""
    rows = log.rows("subscriptions", ("client", "==", client))
    last = max(rows, key=lambda row: row["t"], default=None)
    return None if last is None else str(last["node"])


def _discarded(note: Row) -> str:
    from nearcast.ordering import DiscardReason

    reason = note["detail"]
    why = "it may have been delivered before the node started again"
    if reason.upper() in DiscardReason.__members__:
        why = DiscardReason[reason.upper()].value
    lifetime_ms = note["lifetime_us"] / 1000
    return (
        f"{note['node']} discarded it: {why} (lifetime {lifetime_ms:g} ms, sent by {_sent(note)})"
    )


def _waited(log: LogFolder, held: Row | None, delivered: Row) -> str:
    """Return for whom a message waited at a node, and how long."""
    node = delivered["node"]
    if held is None:
        return f"delivered at {node} at once: everything that it follows was there, or had expired"
    parts = []
    for text in held["detail"].split(","):
        sender, _, stamp = text.rpartition("@")
        one = {"sender": sender, "stamp_us": int(stamp)}
        came = log.rows(
            "causal",
            *(("node", "==", node), ("step", "==", "delivered"), ("group", "==", held["group"])),
            *((name, "==", value) for name, value in one.items()),
        )
        parts.append(f"{_sent(one)}, {'which came' if came else 'which did not come in time'}")
    waited_ms = (delivered["t"] - held["t"]).total_seconds() * 1000
    return f"it waited {waited_ms:.0f} ms at {node} for a message of {'; of '.join(parts)}"


def _sent(note: Row) -> str:
    at = datetime.fromtimestamp(note["stamp_us"] / 1e6, UTC)
    return f"{note['sender']} at {at:%H:%M:%S.%f}"[:-3]


def find_event(log: LogFolder, number: int | None, topic: str | None) -> Row:
    """Return the event with a number, or the last one on a topic."""
    conditions: list[tuple[str, str, object]] = []
    if number is not None:
        conditions.append(("sequence", "==", number))
    if topic is not None:
        conditions.append(("topic", "==", topic))
    found = log.rows("events", *conditions)
    if found:
        return found[-1]
    gaps = [gap for gap in log.rows("gaps") if number is not None and _covers(gap, number)]
    why = f"event {number} was left out of the log ({gaps[0]['reason']})" if gaps else ""
    wanted = f"event {number}" if number is not None else f"an event on {topic}"
    raise UnknownNameError(
        why or f"no {wanted.removeprefix('an ')}",
        where="the event log",
        todo='[log] events = "full" keeps every event' if gaps else "",
    )


def _covers(gap: Row, number: int) -> bool:
    return bool(gap["sequence"] <= number < gap["sequence"] + gap["count"])


def held(changes: Iterable[Row]) -> list[str]:
    """Return the subscriptions that a client had after these changes."""
    texts: dict[str, None] = {}
    for change in changes:
        texts.pop(change["filter"], None)
        if change["added"]:
            texts[change["filter"]] = None
    return list(texts)


def _receivers(rows: Iterable[Row]) -> list[str]:
    return sorted({row["receiver"] for row in rows})


def _space_of(configuration: Configuration, topic: str) -> SpaceSection | None:
    spaces = (one for one in configuration.space if topic_matches(one.topics, topic))
    return next(spaces, None)


def _shown_event(event: Row) -> Row:
    shown = {name: event[name] for name in ("node", "sequence", "t", "publisher", "qos", "retain")}
    return {**shown, "payload": event["payload"].decode(errors="replace")}


@dataclass(frozen=True, slots=True)
class _Case:
    """One client, one event."""

    client: str
    row: Row
    space: SpaceSection | None
    position: Position | None

    def steps(self, texts: list[str]) -> list[Step]:
        topic = self.row["topic"]
        subscriptions = [(text, parse_identity(text)) for text in texts]
        fitting = [(t, w) for t, w in subscriptions if topic_matches(w.topic_filter, topic)]
        if not fitting:
            had = f"it held {', '.join(texts)}" if texts else "it held no subscription"
            return [
                Step("topic", False, f"no subscription of {self.client} matches {topic}: {had}")
            ]
        steps = [Step("topic", True, f"{topic} matches {', '.join(text for text, _ in fitting)}")]
        event, told = self._event()
        if told is not None:
            steps.append(told)
        for text, subscription in fitting:
            steps += self._selection(text, subscription, event)
        return steps

    def _event(self) -> tuple[Event | None, Step | None]:
        """Return the event in its space, decoded as the broker does."""
        if self.space is None:
            return None, Step(
                "space", True, "the topic belongs to no space: its messages are not selected"
            )
        name = self.space.name
        if self.space.values == "properties":
            return None, Step(
                "space", None, f"space {name}: its values are user properties, which are not logged"
            )
        try:
            event = read_event(self.space, self.row["topic"], self.row["payload"])
        except MisuseError as problem:
            told = f"space {name}: {problem}; only plain subscriptions get such a message"
            return None, Step("space", False, told)
        names = (one.name for one in event.space.attributes)
        values = ", ".join(f"{each} {_value(event, each)}" for each in names)
        return event, Step("space", True, f"space {name}: {values}")

    def _selection(self, text: str, subscription: Subscription, event: Event | None) -> list[Step]:
        if (subscription.where, subscription.area, subscription.near_m) == (None, None, None):
            return [Step("selection", True, f"{text} selects all messages")]
        if event is None:
            unknown = self.space is not None and self.space.values == "properties"
            passed = None if unknown else False
            return [Step("selection", passed, f"{text}: the event's values are not known")]
        steps = [
            *_conditions(subscription, event),
            *_area(subscription, event),
            *self._near(subscription, event),
        ]
        passed = subscription.covers(event, self.position)
        return [
            *steps,
            Step("selection", passed, f"{text} {'matches' if passed else 'does not match'}"),
        ]

    def _near(self, subscription: Subscription, event: Event) -> Iterator[Step]:
        if subscription.near_m is None:
            return
        if self.position is None:
            yield Step("position", False, f"the position of {self.client} was not known")
            return
        lon, lat = self.position
        passed = Subscription(topic_filter="#", near_m=subscription.near_m).covers(
            event, self.position
        )
        away = _away(event, self.position)
        told = (
            f"{self.client} was at {lon:g}, {lat:g}: {away}, wants within {subscription.near_m:g} m"
        )
        yield Step("position", passed, told)


def read_event(section: SpaceSection, topic: str, payload: bytes) -> Event:
    """Return the event of a JSON payload in its space."""
    return EventDecoder(section.to_space(), "json", section.paths()).read(topic, payload, ())


def _conditions(subscription: Subscription, event: Event) -> Iterator[Step]:
    """Yield a step for each condition that must hold."""
    parts: tuple[Expression, ...] = ()
    if subscription.where is not None:
        parts = (
            tuple(subscription.where.parts)
            if isinstance(subscription.where, And)
            else (subscription.where,)
        )
    for part in parts:
        passed = Subscription(topic_filter="#", where=part).covers(event)
        values = ", ".join(f"{name} is {_value(event, name)}" for name in sorted(names_in(part)))
        yield Step("condition", passed, f"{where_text(part)}: {values}")


def _value(event: Event, name: str) -> str:
    place = event.space.place_of(name)
    value, attribute = event.values[place], event.space.attributes[place]
    if isinstance(value, float) and attribute.is_category:
        return str(attribute.categories[int(value)])
    return _spoken(value)


def _spoken(value: object) -> str:
    return "missing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _area(subscription: Subscription, event: Event) -> Iterator[Step]:
    if subscription.area is not None:
        passed = Subscription(topic_filter="#", area=subscription.area).covers(event)
        where = "inside" if passed else "outside"
        yield Step("area", passed, f"the event is {where} {subscription.area}")


def _away(event: Event, position: Position) -> str:
    if event.position is None:
        return "the event has no place"
    return f"the event was {distance_m(*position, *event.position):,.0f} m away"


def _handed_over(client: str, receivers: list[str], is_selected: bool) -> Step:
    others = [name for name in receivers if name != client]
    count = f"{len(others)} other client(s) got it" if others else "no other client got it"
    if client in receivers:
        return Step("delivery", True, f"it was handed to {client}; {count}")
    if not is_selected:
        return Step("delivery", False, f"it was not handed to {client}; {count}")
    left = (
        "$top chose others, its lifetime was over, a share group chose another member, the client "
        "was away (QoS 0), its queue was full, or it had asked not to get its own messages"
    )
    return Step(
        "delivery",
        False,
        f"it was not handed to {client}; {count}. The log does not say why: {left}",
    )
