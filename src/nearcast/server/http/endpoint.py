"""How an endpoint is declared: a function with a method, a path, a role and typed input and output.

    @endpoint("GET", "/api/clients/{client}", query=DetailQuery)
    def client(call: Call) -> ClientDetail:
        '''Return one client.'''

The summary in the OpenAPI document is the docstring's first line, the answer's schema comes from
the return annotation, that of the query and of the body from their structs. A query is
`call.query`, a body `call.body`, a part of the path `call.parts["client"]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec

from nearcast.server.http.gathering import Gather
from nearcast.server.http.problem import ProblemError

if TYPE_CHECKING:
    from nearcast.server.http.logins import PageLogin
    from nearcast.server.http.site import Site

MOST_ROWS = 1_000
"""Rows of one answer."""


class Role(IntEnum):
    """What somebody may do; a higher one includes the lower ones."""

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2

    @property
    def word(self) -> str:
        """The role as operators' files and answers have it."""
        return self.name.lower()


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameter."""


@dataclass(slots=True)
class Request:
    """An HTTP request; header names are in lower case, `path` is still percent-encoded."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""
    address: str = ""


@dataclass(slots=True)
class HttpAnswer:
    """What is sent back."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """One request to an endpoint, after the checks."""

    site: Site
    request: Request
    login: PageLogin
    parts: dict[str, str]
    query: Any
    body: Any
    headers: list[tuple[str, str]] = field(default_factory=list)  # of the answer

    @property
    def sees_positions(self) -> bool:
        """Whether the answer may have positions of clients."""
        return self.login.role is Role.OPERATOR and self.site.section.positions

    def may_read(self, topic: str) -> bool:
        """Return whether the answer may have a message of a topic.

        Who has logged in may see all; others, what the rules show to a client without a name.
        """
        return self.login.name is not None or self.site.sources.may_read("", topic)


Handler = Callable[[Call], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One declared endpoint."""

    method: str
    path: str
    handler: Handler
    role: Role
    query: type[Any]
    body: type[Any] | None
    answer: Any
    kind: str
    """The content type of the answer."""
    gather: Gather | None
    """Makes one answer of those of all workers; None: this worker's is that of all."""
    home: Callable[[Call], str] | None
    """Returns the identifier of the session that is asked for: its worker or node answers."""
    changes: bool
    """Whether something changes: a browser then has to show that its request is not forged."""
    spans_nodes: bool
    """Whether `gather` joins the answers of the nodes of a network, too."""
    may_be_empty: bool
    """Whether there may be nothing to answer with: 204."""

    @property
    def name(self) -> str:
        """The identity of the operation in the OpenAPI document."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]

    def matches(self, pieces: list[str]) -> dict[str, str] | None:
        """Return the variable parts of a path in pieces, or None if it is another path."""
        own = self.path.split("/")
        if len(own) != len(pieces):
            return None
        parts: dict[str, str] = {}
        for mine, given in zip(own, pieces, strict=True):
            if mine[:1] == "{":
                parts[mine[1:-1]] = unquote(given)
            elif mine != given:
                return None
        return parts

    def read_query(self, text: str) -> Any:
        """Return the parameters; a ProblemError names the one that is wrong."""
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict")
            return msgspec.convert(dict(pairs), self.query, strict=False)
        except (ValueError, msgspec.ValidationError) as problem:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"query: {problem}") from None

    def read_body(self, request: Request) -> Any:
        """Return the decoded JSON body, None where the endpoint takes none."""
        if self.body is None:
            return None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            found = kind or "no Content-Type"
            raise ProblemError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"found {found}; expected application/json"
            )
        try:
            return msgspec.json.decode(request.body, type=self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ProblemError(HTTPStatus.BAD_REQUEST, f"body: {problem}") from None


ENDPOINTS: list[Endpoint] = []
"""All endpoints, in the order of the document; `endpoints/__init__.py` fills it."""


def endpoint(
    method: str,
    path: str,
    *,
    role: Role = Role.VIEWER,
    query: type[Any] = NoQuery,
    body: type[Any] | None = None,
    kind: str = "application/json",
    changes: bool | None = None,
    may_be_empty: bool = False,
    gather: Gather | None = None,
    spans_nodes: bool = False,
    home: Callable[[Call], str] | None = None,
) -> Callable[[Handler], Handler]:
    """Declare a function as an endpoint."""

    def declare(handler: Handler) -> Handler:
        answer = get_type_hints(handler).get("return")
        does = method != "GET" if changes is None else changes
        ENDPOINTS.append(
            Endpoint(
                method,
                path,
                handler,
                role,
                query,
                body,
                answer,
                kind,
                gather,
                home,
                does,
                spans_nodes,
                may_be_empty,
            )
        )
        return handler

    return declare


def find(method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint of a request and the variable parts of its path. O(endpoints)."""
    pieces = path.split("/")
    others: set[str] = set()
    for one in ENDPOINTS:
        try:
            parts = one.matches(pieces)
        except UnicodeDecodeError:
            continue
        if parts is not None:
            if one.method == method:
                return one, parts
            others.add(one.method)
    if others:
        allowed = ", ".join(sorted(others))
        raise ProblemError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"found {method}; expected {allowed}",
            (("Allow", allowed),),
        )
    raise ProblemError(HTTPStatus.NOT_FOUND, f"nothing is at {path[:200]}")
