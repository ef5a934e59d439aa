"""Who gets a message, why a client did or did not, and publishing one."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from nearcast.broker.content.explain import ExplainQuestion
from nearcast.broker.content.top_k import Candidate
from nearcast.broker.inspection import Draft
from nearcast.model import MisuseError
from nearcast.model.ranks import parse_rank, rank_text
from nearcast.model.requests import INSTRUCTING, split_prefixes
from nearcast.server.http.endpoint import Call, Role, endpoint
from nearcast.server.http.gathering import Asker, joined
from nearcast.server.http.problem import ProblemError

TopicText = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
Payload = Annotated[str, msgspec.Meta(max_length=1 << 20)] | dict[str, Any] | list[Any] | None
Properties = dict[str, Annotated[str, msgspec.Meta(max_length=65_535)]]
Qos = Annotated[int, msgspec.Meta(ge=0, le=2)]
_MOST = 1_000


class ExplainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as it was, or might be, published, and the client in question."""

    client: Annotated[str, msgspec.Meta(max_length=65_535)]
    topic: TopicText
    payload: Payload = ""
    properties: Properties = {}
    qos: Qos = 0
    publisher: str | None = None


class ExplainStepRow(msgspec.Struct, frozen=True):
    """One step; the first that is not ok decides."""

    step: str
    ok: bool
    detail: str


class ExplainAnswer(msgspec.Struct, frozen=True):
    """The verdict, and how it came about."""

    client: str
    topic: str
    delivered: bool
    because: str
    steps: list[ExplainStepRow]


class MatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is not published."""

    topic: TopicText
    payload: Payload = ""
    properties: Properties = {}
    top: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] | None = None
    rank: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 100


class MatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that gets the message."""

    client: str
    connected: bool
    filter: str
    label: str | None
    group: str | None
    distance_m: float | None


class MatchList(msgspec.Struct, frozen=True):
    """The best first; `more`: there are others beyond the limit."""

    matches: list[MatchRow]
    count: int
    more: bool
    problem: str


class PublishBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to publish; `properties` are user properties, such as `$top`."""

    topic: TopicText
    payload: Payload = ""
    properties: Properties = {}
    qos: Qos = 0
    retain: bool = False


class Published(msgspec.Struct, frozen=True):
    """What the broker says of it: "" if nothing."""

    notice: str


def _receiver(call: Call) -> str:
    return str(call.body.client)


async def _match_of_all(call: Call, ask: Asker) -> MatchList:
    """Return the matches of all workers, the nearest first where there is a distance."""
    found = await ask.all()
    rows = joined([one.matches for one in found])
    if any(one.distance_m is not None for one in rows):
        rows.sort(key=lambda one: math.inf if one.distance_m is None else one.distance_m)
    most = call.body.top or call.body.limit
    is_more = len(rows) > most or any(one.more for one in found)
    return MatchList(rows[:most], len(rows[:most]), is_more, found[0].problem)


@endpoint(
    "POST",
    "/api/explain",
    role=Role.OPERATOR,
    body=ExplainBody,
    changes=False,
    home=_receiver,
)
def explain(call: Call) -> ExplainAnswer:
    """Return step by step why a client of this node would get a message, or not."""
    body: ExplainBody = call.body
    _check_positions(call, body.topic)
    question = ExplainQuestion(
        body.client,
        body.topic,
        _payload(body.payload),
        tuple(body.properties.items()),
        body.qos,
        body.publisher,
    )
    found = call.site.node.inspection.explain(question, call.site.now_ms)
    return msgspec.convert(found, ExplainAnswer)


@endpoint(
    "POST",
    "/api/match",
    role=Role.OPERATOR,
    body=MatchBody,
    changes=False,
    gather=_match_of_all,
    spans_nodes=True,
)
def match(call: Call) -> MatchList:
    """Return which clients of this node would get a message now, the best first."""
    body: MatchBody = call.body
    _check_positions(call, body.topic)
    rank = None if body.rank is None else rank_text(parse_rank(body.rank))
    draft = Draft(body.topic, _payload(body.payload), tuple(body.properties.items()))
    found = call.site.node.inspection.match(draft, body.top, rank, body.limit)
    rows = [_row(one) for one in found.first if not one.subscription.session.is_onlooker]
    return MatchList(rows, len(rows), found.total > len(rows), found.problem)


@endpoint("POST", "/api/publish", role=Role.OPERATOR, body=PublishBody)
def publish(call: Call) -> Published:
    """Publish a message."""
    body: PublishBody = call.body
    payload = _payload(body.payload)
    site = call.site
    if body.topic.startswith("$") and body.topic.partition("/")[0] not in INSTRUCTING:
        raise ProblemError(
            HTTPStatus.CONFLICT, f"{body.topic[:200]!r} is a topic of the broker itself"
        )
    pairs = tuple(body.properties.items())
    notice = site.node.inspection.publish(
        Draft(body.topic, payload, pairs, body.qos, body.retain), site.now_ms
    )
    site.turns.schedule()
    site.audit(
        call.login,
        "operator_published",
        f"published {len(payload)} bytes to {body.topic!r}",
        topic=body.topic,
        bytes=len(payload),
    )
    return Published(notice)


def _check_positions(call: Call, topic: str) -> None:
    """Refuse questions whose answers tell where a client is, while positions are not shown."""
    if call.site.section.positions:
        return
    _, bare = split_prefixes(topic, INSTRUCTING)
    if call.site.node.inspection.is_space_with_places(bare):
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            "the answer would tell where clients are: [http] positions is false",
        )


def _payload(value: Payload) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        return msgspec.json.encode(value)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise MisuseError("a lone surrogate", where="payload", expected="text in UTF-8") from None


def _row(one: Candidate) -> MatchRow:
    subscription = one.subscription
    return MatchRow(
        client=subscription.session.client_id,
        connected=subscription.session.link is not None,
        filter=subscription.text,
        label=subscription.label,
        group=subscription.group or None,
        distance_m=None if one.distance_m is None else round(one.distance_m, 1),
    )
