"""Records that cannot be applied: set aside with their place, their subject, and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nearcast.broker.persistence import journal as records
from nearcast.broker.persistence.journal import Journal, RecordKind
from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, WillMessage
from nearcast.model.errors import FileFormatError

_OF_SESSION = frozenset(
    {
        RecordKind.SENT,
        RecordKind.QUEUED,
        RecordKind.UNQUEUED,
        RecordKind.SETTLED,
        RecordKind.RECORDED,
        RecordKind.INCOMING,
        RecordKind.RELEASED,
        RecordKind.ENDED,
        RecordKind.SUBSCRIBED,
        RecordKind.UNSUBSCRIBED,
        RecordKind.WILL,
        RecordKind.NO_WILL,
        RecordKind.SELECTED,
        RecordKind.POSITION,
        RecordKind.CAME,
    }
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """One record that was not applied.

    `batch` counts from 1 in the order replayed, and `offset` is the record's position in its batch;
    batch 0: the record was applied, and its effect failed once all others were. `about` names the
    client, topic or filter; `kept` is the part of it that was applied, as a record.
    """

    batch: int
    offset: int
    kind: str
    about: str
    reason: str
    record: bytes
    kept: bytes = b""


class PartlyAppliedError(FileFormatError):
    """A record that could be applied in part: `kept` is that part, as a record."""

    def __init__(self, found: str, *, expected: str, kept: bytes) -> None:
        self.kept = kept
        super().__init__(found, expected=expected)


def kind_name(kind: int) -> str:
    """Return the name of a record kind; an unknown one (of a later version) is named by number."""
    return RecordKind(kind).name if kind in RecordKind._value2member_map_ else f"kind {kind}"


def reason_of(problem: Exception) -> str:
    """Return in one line why a record could not be applied."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}"[:500]


def will_aside(session: Session, will: WillMessage, problem: Exception) -> SetAside:
    """Return a will that could not be published, as a record set aside."""
    journal = Journal()
    journal.will(session, will)
    about = f"client {session.client_id!r}, topic {will.message.topic_text()!r}"
    return SetAside(0, 0, RecordKind.WILL.name, about, reason_of(problem), journal.take())


def note_aside(key: bytes, value: bytes, until_ms: int, problem: Exception) -> SetAside:
    """Return a note that could not be read, as a record set aside."""
    journal = Journal()
    journal.note(key, value, until_ms)
    return SetAside(
        0, 0, RecordKind.NOTE.name, f"note {key[:80]!r}", reason_of(problem), journal.take()
    )


def retained_aside(message: Message, problem: Exception) -> SetAside:
    """Return a retained message that could not be placed in its space, as a record set aside."""
    journal = Journal()
    journal.retained(message)
    about = f"topic {message.topic_text()!r}, which is served without a place"
    return SetAside(0, 0, RecordKind.RETAINED.name, about, reason_of(problem), journal.take())


Naming = Callable[[int], str]


def describe(kind: int, body: bytes, client: Naming, message: Naming) -> str:
    """Return what a record is about: its client, topic or filter, as far as it can be read.

    `client` returns the name of a session's client by number, `message` a message's topic.
    """
    try:
        return _describe(kind, body, client, message)
    except Exception:  # noqa: BLE001 - a record that is damaged has no name
        return f"{len(body)} bytes that cannot be read"


def _describe(kind: int, body: bytes, client: Naming, message: Naming) -> str:
    if kind in (RecordKind.MESSAGE, RecordKind.RETAINED):
        return f"topic {records.decode_message(body).topic_text()!r}"
    if kind == RecordKind.FORGOTTEN:
        return f"topic {body[2:].decode()!r}"
    if kind == RecordKind.SESSION:
        return f"client {records.session_of(body)[0].client_id!r}"
    if kind in (RecordKind.NOTE, RecordKind.LONG_NOTE):
        head = records.NOTE if kind == RecordKind.NOTE else records.LONG_NOTE
        size = head.unpack_from(body)[1]
        return f"note {body[head.size : head.size + min(size, 80)]!r}"
    if kind not in _OF_SESSION:
        return f"{len(body)} bytes"
    name = client(int.from_bytes(body[:4], "little"))
    detail = _detail(kind, body, message)
    return f"{name}, {detail}" if detail else name


def _detail(kind: int, body: bytes, message: Naming) -> str:
    """Return the subject of a session's record besides the session."""
    if kind in (RecordKind.QUEUED, RecordKind.UNQUEUED):
        return _messages([records.QUEUED.unpack(body)[1]], message)
    if kind == RecordKind.SENT:
        pairs = records.SENT_ONE.iter_unpack(body[records.SENT.size :])
        return _messages([number for number, _ in pairs], message)
    if kind == RecordKind.WILL:
        return f"topic {records.decode_message(body, records.WILL.size).topic_text()!r}"
    if kind == RecordKind.SELECTED:
        label_size = records.SELECTED.unpack_from(body)[-1]
        return f"filter {body[records.SELECTED.size + label_size :].decode()!r}"
    start = {RecordKind.SUBSCRIBED: records.SUBSCRIBED.size, RecordKind.UNSUBSCRIBED: 4}.get(
        RecordKind(kind), 0
    )
    return f"filter {body[start:].decode()!r}" if start else ""


def _messages(numbers: list[int], message: Naming) -> str:
    names = [message(number) for number in numbers[:10]]
    rest = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return f"message{'s' if len(numbers) > 1 else ''} {', '.join(names)}{rest}"
