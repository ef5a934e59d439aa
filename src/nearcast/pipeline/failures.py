"""Spark's failures as answers: a page of stack traces says one thing, and that thing is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError, NearcastError


@contextmanager
def told_plainly(where: str) -> Iterator[None]:
    """Turn what Spark raises about files and disks into our errors; the rest passes."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except NearcastError:
        raise
    except (PySparkException, Py4JJavaError, OSError) as error:
        answer = _answer(str(error), where)
        if answer is None:
            raise
        raise answer from None


def _answer(text: str, where: str) -> NearcastError | None:
    if "No space left on device" in text:
        todo = "Free some space and run again; what was there before is intact"
        return EnvironmentProblem("the disk is full", where=where, todo=todo)
    if "PATH_NOT_FOUND" in text:
        return MisuseError("there is no such file", where=where)
    if "UNABLE_TO_INFER_SCHEMA" in text:
        return MisuseError("no rows: the input is empty", where=where)
    if "FAILED_READ_FILE" in text or "CANNOT_READ_FILE" in text:
        file = re.search(r"reading file (\S+?)\.? ", text)
        todo = "Is it complete, and of the format that its ending says?"
        return FileFormatError("it cannot be read", where=file[1] if file else where, todo=todo)
    if "Permission denied" in text:
        return EnvironmentProblem("permission denied", where=where)
    return None
