"""Logging in and out, and what the page has to know before it shows anything."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec

import nearcast
from nearcast.server.http.endpoint import Call, HttpAnswer, Role, endpoint
from nearcast.server.http.logins import PageLogin
from nearcast.server.http.page_socket import PAGE_PATH
from nearcast.server.http.problem import ProblemError
from nearcast.server.http.tile_source import TILE_ADDRESS

if TYPE_CHECKING:
    from nearcast.server.http.site import Site

_NO_LOGIN = (
    "There are no operators: everybody on this machine sees, nobody changes anything, and "
    "positions of clients stay hidden. Add one: nearcast passwd operators.txt NAME --role "
    'operator, and set [http] operators = "operators.txt".'
)
_NOBODY = (
    "There are no operators, and [auth] anonymous is never: nobody sees anything. Add one: "
    "nearcast passwd operators.txt NAME --role operator, and set "
    '[http] operators = "operators.txt".'
)


class MqttAddress(msgspec.Struct, frozen=True):
    """Where the page's MQTT client connects, at the same host and port."""

    path: str


class MapSettings(msgspec.Struct, frozen=True):
    """What is drawn below the clients: an address with {z}, {x} and {y}, and zooms that it has."""

    tiles: str | None
    min_zoom: int = 0
    max_zoom: int = 19
    vector: bool = False
    attribution: str = ""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what they may see."""

    user: str | None
    role: str | None
    login: bool
    positions: bool
    csrf: str | None
    node: str
    version: str
    mqtt: MqttAddress | None
    map: MapSettings
    notice: str


class LoginBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name and password, or a token alone."""

    user: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    password: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    token: Annotated[str, msgspec.Meta(max_length=200)] | None = None


def _notice(is_needed: bool, is_known: bool) -> str:
    if is_needed:
        return ""
    return _NO_LOGIN if is_known else _NOBODY


def _map(site: Site) -> MapSettings:
    archive, address = site.tiles, site.section.tiles
    if archive is None:
        path = urlsplit(address or "").path
        return MapSettings(address, vector=path.endswith((".mvt", ".pbf")))
    zooms = archive.min_zoom, archive.max_zoom
    return MapSettings(TILE_ADDRESS, *zooms, archive.is_vector, archive.attribution())


def _view(call: Call, login: PageLogin) -> SessionView:
    site = call.site
    is_known = login.role is not Role.NOBODY
    return SessionView(
        user=login.name,
        role=login.role.word if is_known else None,
        login=site.logins.is_needed,
        positions=login.role is Role.OPERATOR and site.section.positions,
        csrf=login.csrf or None,
        node=site.sources.configuration().node.name if is_known else "",
        version=nearcast.__version__ if is_known else "",
        mqtt=MqttAddress(PAGE_PATH) if is_known else None,
        map=_map(site) if is_known else MapSettings(None),
        notice=_notice(site.logins.is_needed, is_known),
    )


@endpoint("GET", "/api/session", role=Role.NOBODY)
def session(call: Call) -> SessionView:
    """Return who asks, with which role, and the token that changes need."""
    return _view(call, call.login)


@endpoint("POST", "/api/session", role=Role.NOBODY, body=LoginBody, changes=False)
async def log_in(call: Call) -> SessionView:
    """Log in with name and password, or with a token; the answer sets a cookie."""
    body: LoginBody = call.body
    logins, address = call.site.logins, call.request.address
    if not logins.is_needed:
        raise ProblemError(
            HTTPStatus.CONFLICT, "there are no operators to log in as: set [http] operators"
        )
    if body.token is not None:
        login = logins.trade_token(body.token, address)
    elif body.user is not None and body.password is not None:
        login = await logins.log_in(body.user, body.password, address)
    else:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "expected user and password, or token")
    if call.login.key:
        logins.log_out(call.login)
    call.headers.append(call.site.cookie(login))
    return _view(call, login)


@endpoint("DELETE", "/api/session")
def log_out(call: Call) -> None:
    """Log out: the cookie is worth nothing any more, and the page's MQTT client is disconnected."""
    if call.login.key:
        call.site.logins.log_out(call.login)
        call.site.audit(call.login, "operator_logout", "logged out")
        call.headers.append(call.site.cookie(PageLogin(None, Role.NOBODY)))


@endpoint("GET", "/api/openapi.json", role=Role.NOBODY)
def openapi(_call: Call) -> HttpAnswer:
    """Return the description of this API: OpenAPI 3.1."""
    from nearcast.server.http.openapi import document

    return HttpAnswer(200, document())
