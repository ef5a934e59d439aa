"""Translates Spark's exceptions into our errors: one sentence instead of a page of stack traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nearcast.model import errors
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError, NearcastError


@contextmanager
def spark_errors_translated(where: str) -> Iterator[None]:
    """Translate Spark's exceptions about files, disks and workers; others pass unchanged."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except NearcastError:
        raise
    except (PySparkException, Py4JJavaError, OSError) as error:
        answer = _answer(str(error), where)
        if answer is None and isinstance(error, OSError):
            answer = _of_the_machine(error, where)
        if answer is None:
            raise
        raise answer from None


def _answer(text: str, where: str) -> NearcastError | None:
    ours = re.search(r"^nearcast\.model\.errors\.(\w+): (.*)$", text, re.MULTILINE)
    if ours:  # raised in a worker; Spark appends it to its stack trace
        kind = getattr(errors, ours[1], MisuseError)
        return kind(ours[2])
    for signs, make in _ANSWERS:
        if any(sign in text for sign in signs):
            return make(text, where)
    return None


def _disk_is_full(_: str, where: str) -> NearcastError:
    todo = "Free some space and run again; what was there before is intact"
    return EnvironmentProblem("the disk is full", where=where, todo=todo)


def _of_the_machine(error: OSError, where: str) -> NearcastError:
    reason = error.strerror or str(error).splitlines()[0]
    return EnvironmentProblem(reason.lower(), where=str(error.filename or where))


def _cannot_be_created(text: str, where: str) -> NearcastError:
    found = re.search(r"Mkdirs failed to create (?:file:)?(\S+)", text)
    todo = "Is a file in the way, or a part of the path read-only? Give another --output"
    where = found[1] if found else where
    return EnvironmentProblem("this directory cannot be created", where=where, todo=todo)


def _unreadable(text: str, where: str) -> NearcastError:
    file = re.search(r"reading file (\S+?)\.? ", text)
    todo = "Is it complete, and does its suffix match its format?"
    return FileFormatError("it cannot be read", where=file[1] if file else where, todo=todo)


_ANSWERS: tuple[tuple[tuple[str, ...], Callable[[str, str], NearcastError]], ...] = (
    (("No space left on device", "Disk quota exceeded", "File too large"), _disk_is_full),
    (("Mkdirs failed to create", "Not a directory", "Read-only file system"), _cannot_be_created),
    (("PATH_NOT_FOUND",), lambda _, where: MisuseError("there is no such file", where=where)),
    (
        ("UNABLE_TO_INFER_SCHEMA",),
        lambda _, where: MisuseError("no rows: the input is empty", where=where),
    ),
    (("FAILED_READ_FILE", "CANNOT_READ_FILE"), _unreadable),
    (
        ("Python worker failed to connect back",),
        lambda _, where: EnvironmentProblem(
            "the machine is too busy: Spark's Python process did not start within its time",
            where=where,
            todo="Start it again; it resumes where it was",
        ),
    ),
    (
        ("Python worker exited unexpectedly",),
        lambda _, where: EnvironmentProblem(
            "a Python process of Spark was killed",
            where=where,
            todo="Is memory short? What was there before is intact; run it again",
        ),
    ),
    (
        ("Permission denied", "AccessDenied", "ACCESS_DENIED"),
        lambda _, where: EnvironmentProblem("permission denied", where=where),
    ),
)
