"""Restores a broker from its journal; unreadable or inapplicable records are reported and kept."""

from __future__ import annotations

import logging

from nearcast.broker import Broker
from nearcast.broker.persistence.unapplied_records import SetAside
from nearcast.server.storage.journal_file import JournalFile
from nearcast.server.storage.journal_format import Damage

log = logging.getLogger("nearcast.server")

_MOST_LINES = 20  # of the log, about records; the file lists all of them


def restore_node(node: Broker, journal: JournalFile, now_ms: int) -> None:
    """Restore a new broker's state, and start the journal's next file with it.

    Damage and single records never make it fail; a disk that cannot be written to and a file that
    is not a journal do.
    """
    aside = node.restore(journal.batches(), now_ms)
    _tell_damages(node, journal)
    if aside:
        _set_aside(journal, aside)
    node.take_journal()  # the snapshot contains all of it
    journal.begin(node.snapshot())


def _tell_damages(node: Broker, journal: JournalFile) -> None:
    """Log the damage, and keep the damaged file."""
    damages = [one for one in journal.damages if not one.is_tail]
    node.counters.journal_damages += len(damages)
    for one in journal.damages:
        level = logging.WARNING if one.is_tail else logging.ERROR
        log.log(level, "%s", damage_text(one, str(journal.path)))
    kept = journal.keep_damaged()
    if kept is not None:
        log.error(
            "the journal was damaged in %d places: what could be read is served, the damaged file "
            "is kept as %s; `nearcast journal check %s` says what it holds",
            len(damages),
            kept,
            kept,
        )


def damage_text(one: Damage, where: str) -> str:
    """Return a one-line description of a damage."""
    size = f"{one.end - one.position:,} bytes dropped" if one.end > one.position else "nothing here"
    if one.is_tail:
        return f"{where}, byte {one.position:,}: {one.reason}, as a crash leaves it; {size}"
    lost = "an unknown number of" if one.lost is None else str(one.lost)
    return f"{where}, byte {one.position:,}: {one.reason}; {size}, {lost} batches lost"


def _set_aside(journal: JournalFile, aside: list[SetAside]) -> None:
    path = journal.write_aside(aside)
    for one in aside[:_MOST_LINES]:
        log.error(
            "a record was set aside: %s: %s of %s: %s",
            journal.place_of(one),
            one.kind,
            one.about,
            one.reason,
        )
    log.error("%d records of the journal were set aside in %s", len(aside), path)
