"""Clients: who is there, what they subscribe to, what waits for them; and how to send one away."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any

import msgspec

from nearcast.broker import Session, SessionSubscription
from nearcast.model import where_text
from nearcast.mqtt import ReasonCode
from nearcast.server.http.endpoint import MOST_ROWS, Call, Role, endpoint
from nearcast.server.http.endpoints.slices import smallest
from nearcast.server.http.gathering import clients_of_all
from nearcast.server.http.geometry import geometry_of
from nearcast.server.http.problem import ProblemError

Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)]
Search = Annotated[str, msgspec.Meta(max_length=500)]
Cursor = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_PROTOCOLS = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class ClientsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which clients, and from where on; `pages`: also the MQTT clients of open pages."""

    search: Search = ""
    connected: bool | None = None
    pages: bool = False
    limit: Limit = 100
    cursor: Cursor = 0


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on, and how many."""

    limit: Limit = 100
    cursor: Cursor = 0


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client in a list; `since` is in milliseconds since 1970, when it connected last."""

    id: str
    node: str
    user: str | None
    connected: bool
    address: str | None
    protocol: str
    since: int | None
    subscriptions: int
    queued: int
    in_flight: int
    held_bytes: int
    position: tuple[float, float] | None


class ClientPage(msgspec.Struct, frozen=True):
    """Some clients; `total` is how many fit the search, `next` the cursor of the others."""

    items: list[ClientRow]
    total: int
    next: int | None


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription: `filter` without its conditions, `text` as MQTT clients write it."""

    filter: str
    text: str
    group: str | None
    qos: int
    where: str | None
    area: dict[str, Any] | None
    near_m: float | None
    label: str | None
    explain: bool


class SubscriptionPage(msgspec.Struct, frozen=True):
    """Some subscriptions of a client."""

    items: list[SubscriptionRow]
    total: int
    next: int | None


class QueueRow(msgspec.Struct, frozen=True):
    """One message that waits for a client, or for its acknowledgement."""

    topic: str
    bytes: int
    qos: int
    state: str


class QueuePage(msgspec.Struct, frozen=True):
    """What waits for a client, what was sent first."""

    items: list[QueueRow]
    total: int
    next: int | None


class ClientDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One client with its first subscriptions."""

    client: ClientRow
    keep_alive_s: float | None
    expiry_s: int
    ends_at: int | None
    clean: bool
    unread: bool
    has_will: bool
    subscriptions: SubscriptionPage


def _named(call: Call) -> str:
    return call.parts["client"]


@endpoint("GET", "/api/clients", query=ClientsQuery, gather=clients_of_all, spans_nodes=True)
async def clients(call: Call) -> ClientPage:
    """Return clients in the order in which their sessions began, connected or not."""
    query: ClientsQuery = call.query
    words = query.search.casefold()

    def fits(one: Session) -> bool:
        if query.connected is not None and query.connected != (one.link is not None):
            return False
        if not words:
            return True
        texts = (one.client_id, one.user_name or "", one.link.address if one.link else "")
        return any(words in text.casefold() for text in texts)

    everybody = call.site.node.client_sessions()
    if not query.pages:
        everybody = [one for one in everybody if not one.is_onlooker]
    total = 0
    if words or query.connected is not None:
        _, total = await smallest(everybody, 1, lambda one: one.number, fits)
    else:
        total = len(everybody)
    found, _ = await smallest(
        everybody,
        query.limit + 1,
        lambda one: one.number,
        lambda one: one.number > query.cursor and fits(one),
    )
    shown = found[: query.limit]
    following = shown[-1].number if len(found) > query.limit else None
    return ClientPage([client_row(call, one) for one in shown], total, following)


@endpoint("GET", "/api/clients/{client}", home=_named)
def client(call: Call) -> ClientDetail:
    """Return one client with its first subscriptions."""
    session = known_client(call)
    link = session.link
    return ClientDetail(
        client=client_row(call, session),
        keep_alive_s=None if link is None else link.most_silence_ms / 1500,
        expiry_s=session.expiry_s,
        ends_at=session.ends_at_ms or None,
        clean=session.expiry_s == 0,
        unread=link is not None and (link.is_paused or link.is_unread),
        has_will=session.will is not None,
        subscriptions=_subscriptions(session, 0, 100),
    )


@endpoint("GET", "/api/clients/{client}/subscriptions", query=PageQuery, home=_named)
def client_subscriptions(call: Call) -> SubscriptionPage:
    """Return the subscriptions of a client."""
    return _subscriptions(known_client(call), call.query.cursor, call.query.limit)


@endpoint("GET", "/api/clients/{client}/queue", query=PageQuery, home=_named)
def client_queue(call: Call) -> QueuePage:
    """Return what a client has not acknowledged yet, and what waits for it."""
    session, query = known_client(call), call.query
    total = len(session.in_flight) + len(session.queue)
    rows = list(islice(_waiting(session), query.cursor, query.cursor + query.limit))
    behind = query.cursor + len(rows)
    return QueuePage(rows, total, behind if rows and behind < total else None)


@endpoint("POST", "/api/clients/{client}/disconnect", role=Role.OPERATOR, home=_named)
def disconnect_client(call: Call) -> None:
    """Disconnect a client; its session stays, and it may connect again."""
    session = known_client(call)
    link = session.link
    if link is None:
        raise ProblemError(HTTPStatus.CONFLICT, f"client {session.client_id!r} is not connected")
    site = call.site
    reason = ReasonCode.ADMINISTRATIVE_ACTION
    site.node.disconnect(link, reason, site.now_ms, "an operator has disconnected this client")
    site.turns.schedule()
    site.audit(
        call.login,
        "operator_disconnected_client",
        f"disconnected client {session.client_id!r}",
        client=session.client_id,
    )


def known_client(call: Call) -> Session:
    """Return the session that the path names, or raise a ProblemError."""
    name = call.parts["client"]
    session = call.site.node.session_of(name)
    if session is None or session.is_peer:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"there is no client {name[:200]!r} at this node")
    return session


def client_row(call: Call, one: Session) -> ClientRow:
    """Return a client as a row, without its position if the caller may not see it."""
    link = one.link
    return ClientRow(
        id=one.client_id,
        node=call.site.sources.configuration().node.name,
        user=one.user_name,
        connected=link is not None,
        address=None if link is None else link.address,
        protocol=_PROTOCOLS.get(one.version, str(one.version)),
        since=one.came_ms or None,
        subscriptions=len(one.subscriptions),
        queued=len(one.queue),
        in_flight=len(one.in_flight),
        held_bytes=one.held_bytes,
        position=one.position if call.sees_positions else None,
    )


def _subscriptions(session: Session, cursor: int, limit: int) -> SubscriptionPage:
    """Return subscriptions from a place on; subscribing does not change the order of the others."""
    total = len(session.subscriptions)
    found = islice(session.subscriptions.values(), cursor, cursor + limit)
    rows = [subscription_row(one) for one in found]
    behind = cursor + len(rows)
    return SubscriptionPage(rows, total, behind if rows and behind < total else None)


def subscription_row(one: SessionSubscription) -> SubscriptionRow:
    """Return a subscription as a row."""
    asked = one.selection
    return SubscriptionRow(
        filter=one.topic_filter,
        text=one.text,
        group=one.group or None,
        qos=one.qos,
        where=None if asked is None or asked.where is None else where_text(asked.where),
        area=None if asked is None else geometry_of(asked.area),
        near_m=None if asked is None else asked.near_m,
        label=one.label,
        explain=one.explain,
    )


def _waiting(session: Session) -> Iterator[QueueRow]:
    for number, message in session.in_flight.items():
        qos = 2 if number in session.exact else 1
        yield QueueRow(message.topic_text(), len(message.payload), qos, "in flight")
    for message, mark in session.queue:
        yield QueueRow(message.topic_text(), len(message.payload), mark & 3, "queued")
