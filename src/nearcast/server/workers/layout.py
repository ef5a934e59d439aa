"""The data directory of a broker with workers, and how it changes when their number does.

    data/journal              one process
    data/workers.json         several: how many
    data/workers-3/2/journal  the second of three

The number changes between two runs. First the old workers exchange what waits for each other,
without clients; then a process of its own reads their journals and writes the new ones beside them.
`workers.json` is what decides: before it names the new number the old state is in force, and from
then on the new one, whenever a crash comes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

from nearcast.broker import Broker
from nearcast.broker.redistribution import redistribute, unsettled
from nearcast.cluster.workers.places import place_of
from nearcast.config import Configuration
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server.auth.passwords import write_private
from nearcast.server.broker_settings import broker_settings, retained_settings, space_settings
from nearcast.server.clock import Clock
from nearcast.server.storage.journal_file import JournalFile

log = logging.getLogger("nearcast.server")

FILE_NAME = "workers.json"
_BEFORE = "journal-before-workers"


def worker_directory(data: Path, count: int) -> Path:
    """Return the directory that has a directory for each of `count` workers."""
    return data / f"workers-{count}"


def known_count(data: Path) -> int:
    """Return how many workers the state in a data directory is of."""
    path = data / FILE_NAME
    try:
        found = json.loads(path.read_bytes())["workers"]
        if not isinstance(found, int) or found < 1:
            raise ValueError(found)
    except FileNotFoundError:
        return 1
    except OSError as problem:
        raise EnvironmentProblem(f"it cannot be read ({problem})", where=str(path)) from None
    except (ValueError, TypeError, KeyError):
        raise FileFormatError(
            "no number of workers", where=str(path), expected='{"workers": 2}'
        ) from None
    return found


def set_count(data: Path, count: int) -> None:
    """Put the state of `count` workers into force."""
    data.mkdir(parents=True, exist_ok=True)
    write_private(data / FILE_NAME, json.dumps({"workers": count}).encode() + b"\n")


def finish(data: Path, count: int) -> None:
    """Complete a change of the number of workers: also one that a crash has interrupted."""
    draft, place = _draft(data, count), _place(data, count)
    if draft.exists():
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
    for old in data.glob("workers-*"):
        if old != place and old.is_dir():
            shutil.rmtree(old)
    if count == 1:
        (data / FILE_NAME).unlink(missing_ok=True)
    elif (data / "journal").exists():
        shutil.rmtree(data / _BEFORE, ignore_errors=True)
        (data / "journal").rename(data / _BEFORE)


def _place(data: Path, count: int) -> Path:
    return data / "journal" if count == 1 else worker_directory(data, count)


def _draft(data: Path, count: int) -> Path:
    return data / ("journal-next" if count == 1 else f"next-workers-{count}")


def journals(data: Path, count: int) -> list[Path]:
    """Return the directories of the journals of `count` workers, in order."""
    if count == 1:
        return [data / "journal"]
    folder = worker_directory(data, count)
    return [folder / str(number + 1) / "journal" for number in range(count)]


def move_sessions(configuration: Configuration, before: int, count: int) -> int:
    """Write the journals of `count` workers from those of before; return how many sessions move.

    Nothing is in force yet. Raises EnvironmentProblem if messages are on their way between workers.
    """
    data = Path(configuration.node.data)
    draft = _draft(data, count)
    shutil.rmtree(draft, ignore_errors=True)
    with contextlib.ExitStack() as opened:
        brokers = [
            opened.enter_context(_restored(configuration, path))
            for path in journals(data, before)
            if path.exists()
        ]
        if not brokers:
            return 0
        left = unsettled(brokers)
        if left:
            raise EnvironmentProblem(f"messages wait for {', '.join(left)}", where=str(data))
        sessions = sum(len(broker.client_sessions()) for broker in brokers)
        for number, records in enumerate(redistribute(brokers, count, place_of)):
            place = draft if count == 1 else draft / str(number + 1) / "journal"
            journal = JournalFile(place, syncs=True)
            journal.begin(records)
            journal.close()
    return sessions


@contextlib.contextmanager
def _restored(configuration: Configuration, directory: Path) -> Iterator[Broker]:
    """Return a broker with the state of a journal, which stays as it is."""
    broker = Broker(
        broker_settings(configuration),
        rng=SystemRandom(),
        with_journal=True,
        spaces=[space_settings(section) for section in configuration.space],
        retained=[retained_settings(section) for section in configuration.retained],
    )
    journal = JournalFile(directory)
    try:
        aside = broker.restore(journal.batches(), Clock().now_ms())
        damages = [one for one in journal.damages if not one.is_tail]
        if aside or damages:
            raise EnvironmentProblem(
                f"{len(damages)} damages and {len(aside)} records that cannot be applied",
                where=str(directory),
                todo="Start once with the number of workers of before: it reports and repairs them",
            )
        yield broker
    finally:
        journal.close()


def in_child(configuration: Configuration, before: int, count: int) -> int:
    """Call `move_sessions` in a process of its own: what it loads is not for the parent."""
    source, target = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(source)
            os.write(target, str(move_sessions(configuration, before, count)).encode())
            code = 0
        except BaseException as problem:  # noqa: BLE001 - the parent reports it
            os.write(target, str(problem).encode()[:4_000] or b"an unknown problem")
        finally:
            os._exit(code)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise EnvironmentProblem(
            f"the sessions of {before} workers could not be moved to {count}: {said}",
            where=str(configuration.node.data),
            todo=f"Nothing has changed. Start with workers = {before} as before.",
        )
    return int(said)
