"""Requests to the HTTP API of one broker, answered by the workers that know the answer.

The worker that serves the page checks login, role and query (`nearcast/server/http/forwarding.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from nearcast.cluster.workers.places import place_of
from nearcast.server.http.endpoint import Call, Endpoint
from nearcast.server.http.forwarding import (
    answer_here,
    decode_answer,
    decode_request,
    encode_request,
    encoded_answer,
)
from nearcast.server.http.gathering import Asker
from nearcast.server.http.problem import ProblemError
from nearcast.server.http.site import Site
from nearcast.server.workers.runtime import WorkerRuntime


class WorkerRequests:
    """Answers requests for all workers, and those of other workers for this one."""

    def __init__(self, site: Site, runtime: WorkerRuntime, place: int) -> None:
        self._site, self._runtime, self._place = site, runtime, place
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
        return await answer_here(found, call)

    async def at(self, place: int, found: Endpoint, call: Call) -> Any:
        """Return the answer of one worker, which may be this one."""
        if place == self._place:
            return await answer_here(found, call)
        return await self._ask(place, found, call)

    async def _ask(self, place: int, found: Endpoint, call: Call) -> Any:
        try:
            data = await self._runtime.ask(self._runtime.names[place], encode_request(found, call))
        except OSError:
            data = b""  # it is just being started, or has logged why it cannot answer
        if not data:
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"worker {place + 1} does not answer: try again"
            )
        return decode_answer(found, data)

    async def answer(self, data: bytes) -> bytes:
        """Return the answer of this worker to a request of another one."""
        return await encoded_answer(*decode_request(self._site, data))


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
