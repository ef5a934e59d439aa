"""What a journal holds and what it has lost, by name; and a journal without what is damaged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.node import Node
from nearcast.node.journal import split_records
from nearcast.node.replay import Replay
from nearcast.node.set_aside import SetAside, kind_name
from nearcast.server.journal_format import Damage, format_of, read_journal, record_starts
from nearcast.server.restoring import damage_text
from nearcast.server.storage import JournalFile, newest_journal


@dataclass(frozen=True, slots=True)
class HeldSession:
    """What a journal holds of one client."""

    client: str
    subscriptions: int
    queued: int
    in_flight: int
    has_will: bool


@dataclass(slots=True)
class Report:
    """What one journal file holds (`sessions`, `retained`) and has lost (`damages`, `aside`).

    `names` of a damage are the records that can still be made out within it; nothing of them is
    used, since nobody can say that they are right.
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
        """Whether nothing is lost but a last batch that a crash may have cut short."""
        return not (self.damages or self.aside)

    def as_fields(self) -> dict[str, Any]:
        """Return it as machines want it."""
        damages = [{"damage": text, "names": names} for text, names in self.damages]
        aside = [{"record": about, "reason": reason} for about, reason in self.aside]
        return asdict(self) | {"whole": self.is_whole, "damages": damages, "aside": aside}


def find_journal(path: Path) -> Path:
    """Return the journal file that a path means: itself, or the newest of a data directory."""
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


def inspect(path: Path) -> Report:
    """Read a journal file and say what it holds and what it has lost; changes nothing."""
    data = path.read_bytes()
    report = Report(str(path), format_of(data), len(data))
    node = Node()
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


def _tell_contents(report: Report, node: Node, replay: Replay) -> None:
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
    report.retained = sorted(one.topic_text() for one in node.state.retained.all())
    report.notes = len(node.state.notes)


def _names(data: bytes, damage: Damage, replay: Replay) -> Iterator[str]:
    """Yield what can still be made out of the records within damaged bytes, by name."""
    for start in record_starts(data, damage):
        try:
            for _, kind, body in split_records(data[start : damage.end]):
                yield f"{kind_name(kind)} of {replay.describe(kind, body)}"
        except FileFormatError:
            continue  # from here on nothing says where a record begins


def repair(directory: Path) -> tuple[Path, Path | None, Path | None]:
    """Write a journal with all that can be read and applied in place of the newest one.

    Returns the new file, the damaged one that is kept (None: it was not damaged), and the file of
    the records that could not be applied (None: there were none). It locks the directory.
    """
    journal = JournalFile(directory, syncs=True)
    try:
        batches = list(journal.batches())
        replay = Replay(Node().state)
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
