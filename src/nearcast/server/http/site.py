"""The management address as a whole: who may ask what, and who answers.

Host ─► files, /metrics, /healthz, /readyz
└──► Origin ─► endpoint ─► login ─► role ─► CSRF ─► query and body ─► handler ─► JSON
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from nearcast.broker import Broker
from nearcast.config import Configuration
from nearcast.config.http_section import HttpSection, is_tile_file
from nearcast.model.errors import NearcastError
from nearcast.server.clock import Clock
from nearcast.server.http import endpoints
from nearcast.server.http.endpoint import Call, Endpoint, HttpAnswer, Request, Role, find
from nearcast.server.http.files import PageFiles
from nearcast.server.http.live import LiveFeed
from nearcast.server.http.log_tail import LogTail
from nearcast.server.http.logins import Logins, PageLogin, is_same
from nearcast.server.http.page_socket import PageSocket
from nearcast.server.http.problem import Problem, ProblemError, problem_of
from nearcast.server.http.tile_source import tiles_of
from nearcast.server.loop_batches import LoopBatches
from nearcast.server.metrics.publisher import MetricsPublisher

if TYPE_CHECKING:
    from nearcast.locality.registration.plan_assignment import NamedPlan
    from nearcast.server.cluster.link_runtime import LinkRuntime
    from nearcast.server.http.protocol import HttpProtocol

endpoints.load()
log = logging.getLogger("nearcast.operators")

MOST_CONNECTIONS = 256
_PLAIN = ("/metrics", "/healthz", "/readyz")
_PROBLEM = "application/problem+json"


@dataclass(slots=True)
class Sources:
    """The parts of a server that the management address shows."""

    node: Broker
    turns: LoopBatches
    clock: Clock
    metrics: MetricsPublisher
    configuration: Callable[[], Configuration]
    network: Callable[[], LinkRuntime | None]
    plan: Callable[[], NamedPlan | None]
    is_ready: Callable[[], bool]
    may_read: Callable[[str, str], bool]
    tail: LogTail
    live: LiveFeed


class SharedAnswers(Protocol):
    """Answers for all processes of a broker, or all nodes of a network."""

    async def result(self, found: Endpoint, call: Call) -> Any:
        """Return what an endpoint answers for all of them."""


class Site:
    """Answers requests; one for all connections."""

    def __init__(self, sources: Sources, logins: Logins, port: int) -> None:
        self.sources = sources
        self.node, self.turns, self.clock = sources.node, sources.turns, sources.clock
        self.logins = logins
        self._cookie = f"nearcast-{port}"  # browsers share cookies between the ports of a host
        self._connections: set[HttpProtocol] = set()
        self.files = PageFiles()
        self.tiles = tiles_of(self.section)
        self.requests: SharedAnswers | None = None  # of workers, or in a network: asks the others

    @property
    def section(self) -> HttpSection:
        """The settings in force."""
        return self.sources.configuration().http

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.clock.now_ms()

    # --- connections ------------------------------------------------------------------------

    def has_room(self, connection: HttpProtocol) -> bool:
        """Return whether one more connection is served, and count it."""
        if len(self._connections) >= MOST_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: HttpProtocol) -> None:
        """Count a connection no longer."""
        self._connections.discard(connection)

    def close(self) -> None:
        """Close all connections; those of pages end as those of other MQTT clients."""
        for one in list(self._connections):
            one.close()

    def page_socket(self, request: Request) -> PageSocket | HttpAnswer:
        """Return the protocol of a page's MQTT connection, or why there is none."""
        try:
            self._check_host(request)
            self._check_origin(request)
            login = self._login(request)
            if login.role is Role.NOBODY:
                raise ProblemError(HTTPStatus.UNAUTHORIZED, "log in first")
        except ProblemError as problem:
            return self._refused(problem)
        return PageSocket(self.turns, login)

    # --- requests ---------------------------------------------------------------------------

    async def answer(self, request: Request) -> HttpAnswer:
        """Return the answer to a request; a mistake of ours is one, too."""
        try:
            answer = await self._answer(request)
        except ProblemError as problem:
            answer = self._refused(problem)
        except NearcastError as error:
            answer = self._refused(problem_of(error))
        except Exception as error:  # noqa: BLE001 - a mistake of ours in one endpoint
            self.node.failures.take(f"answering {request.method} {request.path[:100]}", error)
            answer = self.refusal(500, "an internal error; it is logged")
        answer.headers += self._security_headers()
        return answer

    async def _answer(self, request: Request) -> HttpAnswer:
        path, is_read = request.path, request.method in ("GET", "HEAD")
        if path in _PLAIN and is_read:
            return self._plain(request)
        self._check_host(request)
        if path.startswith("/api/"):
            return await self._api(request)
        if is_read:
            return self.files.answer(path, request.headers)
        raise ProblemError(HTTPStatus.NOT_FOUND, f"nothing is at {path[:200]}")

    def _plain(self, request: Request) -> HttpAnswer:
        if request.path == "/metrics":
            self._check_host(request)
            kind, text = self.sources.metrics.page()
            return HttpAnswer(200, text.encode(), f"{kind}; charset=utf-8")
        is_fine = request.path == "/healthz" or self.sources.is_ready()
        text = "ok\n" if is_fine else "not yet: this node has not joined its network\n"
        return HttpAnswer(200 if is_fine else 503, text.encode(), "text/plain; charset=utf-8")

    async def _api(self, request: Request) -> HttpAnswer:
        if request.method not in ("GET", "HEAD"):
            self._check_origin(request)
        method = "GET" if request.method == "HEAD" else request.method
        found, parts = find(method, request.path)
        login = self._login(request)
        self._check_role(found, login)
        if found.changes and login.key:
            self._check_csrf(request, login)
        query = found.read_query(request.query)
        call = Call(self, request, login, parts, query, found.read_body(request))
        others = self.requests
        result = found.handler(call) if others is None else others.result(found, call)
        if inspect.isawaitable(result):
            result = await result
        return self._encoded(call, result)

    def _encoded(self, call: Call, result: Any) -> HttpAnswer:
        if isinstance(result, HttpAnswer):
            answer = result
        elif result is None:
            answer = HttpAnswer(204)
        else:
            answer = HttpAnswer(200, msgspec.json.encode(result))
        answer.headers += call.headers
        if not any(name == "Cache-Control" for name, _ in answer.headers):
            answer.headers.append(("Cache-Control", "private, no-cache"))
        if call.request.method in ("GET", "HEAD") and answer.status == 200:
            tag = f'"{hashlib.sha256(answer.body).hexdigest()[:24]}"'
            answer.headers.append(("ETag", tag))
            if tag in call.request.headers.get("if-none-match", ""):
                return HttpAnswer(304, headers=answer.headers)
        return answer

    # --- checks -----------------------------------------------------------------------------

    def _check_host(self, request: Request) -> None:
        """Refuse a name that is not ours: another site may have it point to this machine."""
        host = _host_of(request.headers.get("host", ""))
        section = self.section
        if host in ("localhost", section.host_and_port[0].lower(), *section.hosts) or _is_ip(host):
            return
        raise ProblemError(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"found the host {host[:100]!r}; expected localhost, an address, or one of "
            "[http] hosts",
        )

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site sends."""
        origin = request.headers.get("origin")
        if origin is None:
            return
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            place = ""
        if place != request.headers.get("host", "").lower():
            raise ProblemError(
                HTTPStatus.FORBIDDEN, "the request comes from a page of another site"
            )

    def _login(self, request: Request) -> PageLogin:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            if not self.logins.is_needed:
                raise ProblemError(
                    HTTPStatus.UNAUTHORIZED, "there are no operators: set [http] operators"
                )
            return self.logins.of_token(token.strip(), request.address)
        return self.logins.of_cookie(self._cookie_of(request))

    def _cookie_of(self, request: Request) -> str:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value

    @staticmethod
    def _check_role(found: Endpoint, login: PageLogin) -> None:
        if login.role >= found.role:
            return
        if login.role is Role.NOBODY:
            raise ProblemError(
                HTTPStatus.UNAUTHORIZED, "log in first", (("WWW-Authenticate", "Bearer"),)
            )
        why = "" if login.name else " There is none yet: set [http] operators."
        raise ProblemError(HTTPStatus.FORBIDDEN, f"only an operator may do this.{why}")

    @staticmethod
    def _check_csrf(request: Request, login: PageLogin) -> None:
        if not is_same(request.headers.get("x-csrf-token", ""), login.csrf):
            raise ProblemError(
                HTTPStatus.FORBIDDEN, "found no X-CSRF-Token; expected that of /api/session"
            )

    # --- parts of answers -------------------------------------------------------------------

    def cookie(self, login: PageLogin) -> tuple[str, str]:
        """Return the header that gives a browser its login, or takes it away."""
        age = "" if login.key else "; Max-Age=0"
        secure = "; Secure" if self.section.certificate is not None else ""
        text = f"{self._cookie}={login.key}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"
        return "Set-Cookie", text

    def audit(self, login: PageLogin, event: str, text: str, **fields: object) -> None:
        """Log what an operator did."""
        log.info(
            "operator %r %s",
            login.name,
            text,
            extra={"fields": {"event": event, "operator": login.name, **fields}},
        )

    def refusal(self, status: int, text: str) -> HttpAnswer:
        """Return an answer that says what is wrong."""
        title = HTTPStatus(status).phrase
        return HttpAnswer(status, msgspec.json.encode(Problem(title, status, text)), _PROBLEM)

    def _refused(self, problem: ProblemError) -> HttpAnswer:
        body = msgspec.json.encode(problem.problem)
        headers = [*problem.headers, ("Cache-Control", "no-store")]
        return HttpAnswer(int(problem.status), body, _PROBLEM, headers)

    def _security_headers(self) -> list[tuple[str, str]]:
        return [
            ("Content-Security-Policy", content_policy(self.section.tiles)),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ]


def content_policy(tiles: str | None) -> str:
    """Return the Content-Security-Policy: our own files only, and another server of map tiles."""
    more = ""
    if tiles is not None and not is_tile_file(tiles):
        parts = urlsplit(tiles)
        more = f" {parts.scheme}://{parts.netloc}"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        f"img-src 'self' data: blob:{more}; connect-src 'self'{more}; worker-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def _host_of(header: str) -> str:
    """Return the name in a Host header.

    >>> _host_of("[::1]:8080"), _host_of("Localhost:80"), _host_of("10.0.0.1")
    ('::1', 'localhost', '10.0.0.1')
    """
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
