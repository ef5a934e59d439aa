"""Reports what a journal contains and what it has lost; repairs a damaged journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearcast.broker import Broker
from nearcast.broker.persistence.journal import split_records
from nearcast.broker.persistence.replay import Replay
from nearcast.broker.persistence.unapplied_records import SetAside, kind_name
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server.storage.journal_file import JournalFile, newest_journal
from nearcast.server.storage.journal_format import Damage, format_of, read_journal, record_starts
from nearcast.server.storage.restore import damage_text


@dataclass(frozen=True, slots=True)
class HeldSession:
    """What a journal contains of one client's session."""

    client: str
    subscriptions: int
    queued: int
    in_flight: int
    has_will: bool


@dataclass(slots=True)
class JournalReport:
    """The contents of a journal file (`sessions`, `retained`) and its losses (`damages`, `aside`).

    `names` of a damage are the records still recognisable within it; they are not used, since
    nothing shows that they are intact.
    """

    path: str
    format: int
    size: int
    batches: int = 0
    sessions: list[HeldSession] = field(default_factory=list)
    retained: list[str] = field(default_factory=list)
    notes: int = 0
    tail: str = ""
    damages: list[tuple[str, list[str]]] = field(default_factory=list)
    aside: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost except a last batch that a crash may have truncated."""
        return not (self.damages or self.aside)

    def as_fields(self) -> dict[str, Any]:
        """Return the report as JSON fields."""
        damages = [{"damage": text, "names": names} for text, names in self.damages]
        aside = [{"record": about, "reason": reason} for about, reason in self.aside]
        return asdict(self) | {"whole": self.is_whole, "damages": damages, "aside": aside}


def find_journal(path: Path) -> Path:
    """Return the journal file for a path: itself, or the newest of a data directory."""
    if path.is_file():
        return path
    inner = path / "journal"
    found = newest_journal(inner if inner.is_dir() else path)
    if found is None:
        raise EnvironmentProblem(
            "there is no journal",
            where=str(path),
            todo="Name a data directory ([node] data, --data of `nearcast serve`) or a file of it.",
        )
    return found


def inspect(path: Path) -> JournalReport:
    """Return the report of a journal file; changes nothing."""
    data = path.read_bytes()
    report = JournalReport(str(path), format_of(data), len(data))
    node = Broker()
    replay = Replay(node.state)
    places: list[tuple[int, int]] = []
    for one in read_journal(data, str(path)):
        if not isinstance(one, Damage):
            places.append((one.number, one.position))
            replay.apply(one.records)
        elif one.is_tail:
            report.tail = damage_text(one, path.name)
        else:
            names = list(_names(data, one, replay))
            report.damages.append((damage_text(one, path.name), names))
    report.batches = len(places)
    _tell_contents(report, node, replay)
    for record in replay.aside:
        number, position = places[record.batch - 1]
        place = f"batch {number}, byte {position + record.offset:,}"
        report.aside.append((f"{place}: {record.kind} of {record.about}", record.reason))
    return report


def _tell_contents(report: JournalReport, node: Broker, replay: Replay) -> None:
    report.sessions = [
        HeldSession(
            one.client_id,
            len(one.subscriptions),
            len(one.queue),
            len(one.in_flight) + len(one.released),
            one.will is not None,
        )
        for one in replay.sessions
    ]
    report.retained = sorted(one.topic_text() for one in node.retained_messages())
    report.notes = len(node.notes)


def _names(data: bytes, damage: Damage, replay: Replay) -> Iterator[str]:
    """Yield a description of each record still recognisable within damaged bytes."""
    for start in record_starts(data, damage):
        try:
            for _, kind, body in split_records(data[start : damage.end]):
                yield f"{kind_name(kind)} of {replay.describe(kind, body)}"
        except FileFormatError:
            continue  # from here on record boundaries are unknown


def repair(directory: Path) -> tuple[Path, Path | None, Path | None]:
    """Replace the newest journal by one with all that can be read and applied.

    Returns the new file, the damaged one that is kept (None: it was not damaged), and the file of
    the records that could not be applied (None: there were none). It locks the directory.
    """
    journal = JournalFile(directory, syncs=True)
    try:
        batches = list(journal.batches())
        replay = Replay(Broker().state)
        for batch in batches:
            replay.apply(batch)
        kept = journal.keep_damaged()
        aside = journal.write_aside(replay.aside) if replay.aside else None
        journal.begin(_without(batches, replay.aside))
        assert journal.path is not None
        return journal.path, kept, aside
    finally:
        journal.close()


def _without(batches: list[bytes], aside: Iterable[SetAside]) -> Iterator[bytes]:
    """Yield the batches without the records that were set aside."""
    holes: dict[int, list[SetAside]] = defaultdict(list)
    for one in aside:
        holes[one.batch].append(one)
    for number, batch in enumerate(batches, 1):
        parts: list[bytes] = []
        at = 0
        for one in holes[number]:
            parts += (batch[at : one.offset], one.kept)
            at = one.offset + len(one.record)
        yield b"".join((*parts, batch[at:]))
