"""A request on its way to another process or node that answers it, and the answer on its way back.

Whoever sends it has checked login, role and query. What travels is an endpoint with a query and a
body that are checked already, and the role of who asks.
"""

from __future__ import annotations

import inspect
from http import HTTPStatus
from typing import Any

import msgspec

from nearcast.model.errors import NearcastError
from nearcast.server.http.endpoint import ENDPOINTS, Call, Endpoint, HttpAnswer, Request, Role
from nearcast.server.http.logins import PageLogin
from nearcast.server.http.problem import Problem, ProblemError, problem_of
from nearcast.server.http.site import Site

_encode = msgspec.msgpack.encode


class _Asked(msgspec.Struct, array_like=True):
    """A request as it travels."""

    endpoint: str
    path: str
    parts: dict[str, str]
    query: bytes
    body: bytes
    login: str | None
    role: int


async def answer_here(found: Endpoint, call: Call) -> Any:
    """Return what this process answers."""
    result = found.handler(call)
    return await result if inspect.isawaitable(result) else result


def encode_request(found: Endpoint, call: Call) -> bytes:
    """Return a request as bytes."""
    return _encode(
        _Asked(
            found.name,
            call.request.path,
            call.parts,
            msgspec.json.encode(call.query),
            msgspec.json.encode(call.body),
            call.login.name,
            int(call.login.role),
        )
    )


def decode_request(site: Site, data: bytes) -> tuple[Endpoint, Call]:
    """Return a request; one of another release may be a LookupError, ValueError, MsgspecError."""
    asked = msgspec.msgpack.decode(data, type=_Asked)
    found = next((one for one in ENDPOINTS if one.name == asked.endpoint), None)
    if found is None:
        raise LookupError(asked.endpoint)
    query = msgspec.json.decode(asked.query, type=found.query)
    body = None if found.body is None else msgspec.json.decode(asked.body, type=found.body)
    login = PageLogin(asked.login, Role(asked.role))
    request = Request(found.method, asked.path, "", {})
    return found, Call(site, request, login, asked.parts, query, body)


async def encoded_answer(found: Endpoint, call: Call) -> bytes:
    """Return as bytes what this process answers; a refusal is an answer, too."""
    try:
        result = await answer_here(found, call)
    except ProblemError as problem:
        return _refusal(problem)
    except NearcastError as error:
        return _refusal(problem_of(error))
    if isinstance(result, HttpAnswer):
        return _encode((result.status, result.body))
    return _encode((200, b"" if result is None else msgspec.json.encode(result)))


def _refusal(problem: ProblemError) -> bytes:
    return _encode((int(problem.status), msgspec.json.encode(problem.problem)))


def decode_answer(found: Endpoint, data: bytes) -> Any:
    """Return an answer; one that is a refusal is raised as a ProblemError."""
    status, body = msgspec.msgpack.decode(data, type=tuple[int, bytes])
    if status >= HTTPStatus.BAD_REQUEST:
        told = msgspec.json.decode(body, type=Problem)
        raise ProblemError(HTTPStatus(status), told.detail)
    if not body:
        return None
    if found.answer is HttpAnswer:
        return HttpAnswer(status, body, found.kind)
    return msgspec.json.decode(body, type=found.answer)
