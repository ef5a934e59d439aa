"""Errors as answers: problem details in JSON (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from nearcast.model.errors import ExpressionError, NearcastError


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found, what was expected, what to do; `position` counts characters from 0."""

    title: str
    status: int
    detail: str = ""
    where: str = ""
    expected: str = ""
    todo: str = ""
    position: int | None = None


class ProblemError(Exception):
    """Ends a request with a problem; `headers` go with it."""

    def __init__(
        self, status: HTTPStatus, detail: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers
        self.problem = Problem(status.phrase, int(status), detail)


def problem_of(error: NearcastError) -> ProblemError:
    """Return the answer to a caller's mistake."""
    answer = ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
    position = error.position if isinstance(error, ExpressionError) else None
    answer.problem = msgspec.structs.replace(
        answer.problem,
        where=error.where,
        expected=error.expected,
        todo=error.todo,
        position=position,
    )
    return answer
