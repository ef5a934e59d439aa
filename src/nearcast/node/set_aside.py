"""Records that cannot be applied: kept apart, with their place, what they tell, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearcast.model.errors import FileFormatError
from nearcast.node import journal as records
from nearcast.node.journal import Journal, Kind
from nearcast.node.message import Message
from nearcast.node.session import Session, WillMessage

_OF_SESSION = frozenset(
    {
        Kind.SENT,
        Kind.QUEUED,
        Kind.UNQUEUED,
        Kind.SETTLED,
        Kind.RECORDED,
        Kind.INCOMING,
        Kind.RELEASED,
        Kind.ENDED,
        Kind.SUBSCRIBED,
        Kind.UNSUBSCRIBED,
        Kind.WILL,
        Kind.NO_WILL,
        Kind.SELECTED,
        Kind.POSITION,
        Kind.CAME,
    }
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """One record that was not applied.

    `batch` counts from 1 in the order replayed, and `offset` is where the record begins in its
    batch; batch 0: the record was applied, and what it made failed once all others were.
    `about` names the client, topic or filter; `kept` is what was applied of it, as a record.
    """

    batch: int
    offset: int
    kind: str
    about: str
    reason: str
    record: bytes
    kept: bytes = b""


class PartlyAppliedError(FileFormatError):
    """A record of which some could be applied: `kept`, as a record."""

    def __init__(self, found: str, *, expected: str, kept: bytes) -> None:
        self.kept = kept
        super().__init__(found, expected=expected)


def kind_name(kind: int) -> str:
    """Return the name of a record's kind; one of a later version has only its number."""
    return Kind(kind).name if kind in Kind._value2member_map_ else f"kind {kind}"


def reason_of(problem: Exception) -> str:
    """Return why a record could not be applied, in one line."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}"[:500]


def will_aside(session: Session, will: WillMessage, problem: Exception) -> SetAside:
    """Return a will that could not be published, as a record set aside."""
    journal = Journal()
    journal.will(session, will)
    about = f"client {session.client_id!r}, topic {will.message.topic_text()!r}"
    return SetAside(0, 0, Kind.WILL.name, about, reason_of(problem), journal.take())


def note_aside(key: bytes, value: bytes, until_ms: int, problem: Exception) -> SetAside:
    """Return a note that could not be read, as a record set aside."""
    journal = Journal()
    journal.note(key, value, until_ms)
    return SetAside(0, 0, Kind.NOTE.name, f"note {key[:80]!r}", reason_of(problem), journal.take())


def retained_aside(message: Message, problem: Exception) -> SetAside:
    """Return a retained message that could not be placed in its space, as a record set aside."""
    journal = Journal()
    journal.retained(message)
    about = f"topic {message.topic_text()!r}, which is served without a place"
    return SetAside(0, 0, Kind.RETAINED.name, about, reason_of(problem), journal.take())


Naming = Callable[[int], str]


def describe(kind: int, body: bytes, client: Naming, message: Naming) -> str:
    """Return what a record is about: its client, topic or filter, as far as it can be read.

    `client` names the client of a session's number, `message` a message with its topic.
    """
    try:
        return _describe(kind, body, client, message)
    except Exception:  # noqa: BLE001 - a record that is damaged has no name
        return f"{len(body)} bytes that cannot be read"


def _describe(kind: int, body: bytes, client: Naming, message: Naming) -> str:
    if kind in (Kind.MESSAGE, Kind.RETAINED):
        return f"topic {records.decode_message(body).topic_text()!r}"
    if kind == Kind.FORGOTTEN:
        return f"topic {body[2:].decode()!r}"
    if kind == Kind.SESSION:
        return f"client {records.session_of(body)[0].client_id!r}"
    if kind in (Kind.NOTE, Kind.LONG_NOTE):
        head = records.NOTE if kind == Kind.NOTE else records.LONG_NOTE
        size = head.unpack_from(body)[1]
        return f"note {body[head.size : head.size + min(size, 80)]!r}"
    if kind not in _OF_SESSION:
        return f"{len(body)} bytes"
    name = client(int.from_bytes(body[:4], "little"))
    detail = _detail(kind, body, message)
    return f"{name}, {detail}" if detail else name


def _detail(kind: int, body: bytes, message: Naming) -> str:
    """Return what a record says of a session beside its number."""
    if kind in (Kind.QUEUED, Kind.UNQUEUED):
        return _messages([records.QUEUED.unpack(body)[1]], message)
    if kind == Kind.SENT:
        pairs = records.SENT_ONE.iter_unpack(body[records.SENT.size :])
        return _messages([number for number, _ in pairs], message)
    if kind == Kind.WILL:
        return f"topic {records.decode_message(body, records.WILL.size).topic_text()!r}"
    if kind == Kind.SELECTED:
        label_size = records.SELECTED.unpack_from(body)[-1]
        return f"filter {body[records.SELECTED.size + label_size :].decode()!r}"
    start = {Kind.SUBSCRIBED: records.SUBSCRIBED.size, Kind.UNSUBSCRIBED: 4}.get(Kind(kind), 0)
    return f"filter {body[start:].decode()!r}" if start else ""


def _messages(numbers: list[int], message: Naming) -> str:
    names = [message(one) for one in numbers[:10]]
    rest = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"message{'s' if len(numbers) > 1 else ''} {', '.join(names)}{rest}"
