"""Requests to the HTTP API of one broker, answered by the workers that know the answer.

The worker that serves the page checks login, role and query; what it asks the others is an endpoint
with a query and a body that are checked already, and the role of who asks.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from nearcast.cluster.workers.places import place_of
from nearcast.model.errors import NearcastError
from nearcast.server.http.endpoint import ENDPOINTS, Call, Endpoint, HttpAnswer, Request, Role
from nearcast.server.http.gathering import Asker
from nearcast.server.http.logins import PageLogin
from nearcast.server.http.problem import Problem, ProblemError, problem_of
from nearcast.server.http.site import Site
from nearcast.server.workers.runtime import WorkerRuntime

_encode = msgspec.msgpack.encode


class _Asked(msgspec.Struct, array_like=True):
    """A request as it travels between workers."""

    endpoint: str
    path: str
    parts: dict[str, str]
    query: bytes
    body: bytes
    login: str | None
    role: int


class WorkerRequests:
    """Answers requests for all workers, and those of other workers for this one."""

    def __init__(self, site: Site, runtime: WorkerRuntime, place: int) -> None:
        self._site, self._runtime, self._place = site, runtime, place
        self._endpoints = {one.name: one for one in ENDPOINTS}
        runtime.answer = self.answer

    async def result(self, found: Endpoint, call: Call) -> Any:
        """Return what an endpoint answers for the whole broker."""
        names = self._runtime.names
        if found.home is not None:
            place = place_of(found.home(call), len(names))
            if place != self._place:
                return await self._ask(place, found, call)
        elif found.gather is not None:
            return await found.gather(call, _AllWorkers(self, found, call))
        return await _local(found, call)

    async def at(self, place: int, found: Endpoint, call: Call) -> Any:
        """Return the answer of one worker, which may be this one."""
        if place == self._place:
            return await _local(found, call)
        return await self._ask(place, found, call)

    async def _ask(self, place: int, found: Endpoint, call: Call) -> Any:
        asked = _Asked(
            found.name,
            call.request.path,
            call.parts,
            msgspec.json.encode(call.query),
            msgspec.json.encode(call.body),
            call.login.name,
            int(call.login.role),
        )
        try:
            data = await self._runtime.ask(self._runtime.names[place], _encode(asked))
        except OSError:
            data = b""  # it is just being started, or has logged why it cannot answer
        if not data:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"worker {place + 1} does not answer: try again"
            )
        status, body = msgspec.msgpack.decode(data, type=tuple[int, bytes])
        if status >= HTTPStatus.BAD_REQUEST:
            told = msgspec.json.decode(body, type=Problem)
            raise ProblemError(HTTPStatus(status), told.detail)
        if not body:
            return None
        if found.answer is HttpAnswer:
            return HttpAnswer(status, body, found.kind)
        return msgspec.json.decode(body, type=found.answer)

    async def answer(self, data: bytes) -> bytes:
        """Return the answer of this worker to a request of another one."""
        asked = msgspec.msgpack.decode(data, type=_Asked)
        found = self._endpoints[asked.endpoint]
        query = msgspec.json.decode(asked.query, type=found.query)
        body = None if found.body is None else msgspec.json.decode(asked.body, type=found.body)
        login = PageLogin(asked.login, Role(asked.role))
        request = Request(found.method, asked.path, "", {})
        try:
            result = await _local(found, Call(self._site, request, login, asked.parts, query, body))
        except ProblemError as problem:
            return _encode((int(problem.status), msgspec.json.encode(problem.problem)))
        except NearcastError as error:
            found_problem = problem_of(error)
            return _encode((int(found_problem.status), msgspec.json.encode(found_problem.problem)))
        if isinstance(result, HttpAnswer):
            return _encode((result.status, result.body))
        return _encode((200, b"" if result is None else msgspec.json.encode(result)))


class _AllWorkers(Asker):
    """Asks the workers what one request asks."""

    def __init__(self, requests: WorkerRequests, found: Endpoint, call: Call) -> None:
        self._requests, self._found, self._call = requests, found, call
        self.count = len(requests._runtime.names)

    async def one(self, place: int, query: Any = None) -> Any:
        call = self._call if query is None else replace(self._call, query=query)
        try:
            return await self._requests.at(place, self._found, call)
        except ProblemError as problem:
            if problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return None

    async def all(self, query: Any = None) -> list[Any]:
        own = self._requests._place
        order = sorted(range(self.count), key=lambda place: (place != own, place))
        found = await asyncio.gather(*(self.one(place, query) for place in order))
        return [one for one in found if one is not None]


async def _local(found: Endpoint, call: Call) -> Any:
    result = found.handler(call)
    return await result if inspect.isawaitable(result) else result
