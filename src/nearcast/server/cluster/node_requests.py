"""Requests to the HTTP API of one node that other nodes of its network answer, or share in.

    a client that is not here      the node that has it answers
    clients, shapes, matches       the answers of all nodes, joined

Other requests are about the node that is asked. Without a name (a viewer of a machine without
operators) all of them are: what this node shows to everybody, another one may not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from nearcast.cluster.operators.questions import Answers
from nearcast.server.cluster.link_runtime import LinkRuntime
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


class NodeRequests:
    """Answers requests together with the other nodes, and those of other nodes for this one."""

    def __init__(self, site: Site, runtime: LinkRuntime) -> None:
        self._site, self._mesh = site, runtime.mesh
        self._answering: set[asyncio.Task[None]] = set()
        self._mesh.operators.responder = self._asked

    async def result(self, found: Endpoint, call: Call) -> Any:
        """Return what an endpoint answers for the whole network."""
        if call.login.name is not None:
            if found.home is not None and self._site.node.session_of(found.home(call)) is None:
                return await self._at_home(found, call)
            if found.gather is not None and found.spans_nodes:
                return await found.gather(call, _AllNodes(self, found, call))
        return await answer_here(found, call)

    async def _at_home(self, found: Endpoint, call: Call) -> Any:
        """Return the answer of the node that has a client; where none has, that of this one."""
        for answer in (await self.ask(found, call)).values():
            with contextlib.suppress(msgspec.DecodeError):  # of another release
                if answer:
                    return decode_answer(found, answer)
        return await answer_here(found, call)

    async def ask(self, found: Endpoint, call: Call) -> Answers:
        """Return what the other nodes answer, by name."""
        answers: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        request = encode_request(found, call)

        def ended(told: Answers) -> None:
            if not answers.done():  # else whoever asked has gone
                answers.set_result(told)

        self._mesh.operators.ask(request, ended, self._site.now_ms)
        self._site.turns.schedule()
        return await answers

    # --- the other end ----------------------------------------------------------------------

    def _asked(self, data: bytes, answer: Callable[[bytes], None]) -> None:
        """Answer another node, beside the traffic of clients."""
        task = asyncio.get_running_loop().create_task(self._reply(data, answer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _reply(self, data: bytes, answer: Callable[[bytes], None]) -> None:
        told = b""
        try:
            told = await self._answer_to(data)
        except Exception as error:  # noqa: BLE001 - a mistake of ours in one endpoint
            self._site.node.failures.take("answering another node", error)
        answer(told)
        self._site.turns.schedule()

    async def _answer_to(self, data: bytes) -> bytes:
        try:
            found, call = decode_request(self._site, data)
        except (msgspec.MsgspecError, LookupError, ValueError):
            return b""  # of another release
        is_ours = found.spans_nodes
        if found.home is not None:
            is_ours = self._site.node.session_of(found.home(call)) is not None
        if not is_ours or call.login.role < found.role:
            return b""
        return await encoded_answer(found, call)


class _AllNodes(Asker):
    """Asks the nodes what one request asks, this one first and the others by name."""

    def __init__(self, requests: NodeRequests, found: Endpoint, call: Call) -> None:
        self._requests, self._found, self._call = requests, found, call
        self._names = sorted(peer.name for peer in requests._mesh.neighbours.present)
        self.count = 1 + len(self._names)

    async def one(self, place: int, query: Any = None) -> Any:
        call = self._asking(query)
        if place == 0:
            return await answer_here(self._found, call)
        return (await self._others(call)).get(self._names[place - 1])

    async def all(self, query: Any = None) -> list[Any]:
        call = self._asking(query)
        own = await answer_here(self._found, call)
        others = await self._others(call)
        return [own, *(others[name] for name in self._names if name in others)]

    def _asking(self, query: Any) -> Call:
        return self._call if query is None else replace(self._call, query=query)

    async def _others(self, call: Call) -> dict[str, Any]:
        """Return the answers of the other nodes by name; without those that refuse it."""
        found: dict[str, Any] = {}
        for name, data in (await self._requests.ask(self._found, call)).items():
            try:
                if data:
                    found[name] = decode_answer(self._found, data)
            except (ProblemError, msgspec.DecodeError):
                continue  # it shows no positions, or is of another release
        return found
