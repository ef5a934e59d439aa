"""Places: where clients are, what their subscriptions cover, which node holds what."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from nearcast.server.http.endpoint import Call, HttpAnswer, Role, endpoint
from nearcast.server.http.endpoints.learned import found_files, json_file
from nearcast.server.http.endpoints.slices import in_slices
from nearcast.server.http.gathering import added, joined, merged
from nearcast.server.http.geometry import geometry_of
from nearcast.server.http.problem import ProblemError

_GEOJSON = "application/geo+json"
_MOST_POSITIONS = 50_000
_MOST_SHAPES = 5_000
_MOST_COUNTED = 1_000  # of what is left out
_Degrees = Annotated[float, msgspec.Meta(ge=-360, le=360)]
_EMPTY: dict[str, Any] = {"type": "FeatureCollection", "features": []}


class ViewQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the map; `west` above `east` is over the antimeridian."""

    west: _Degrees = -180.0
    south: _Degrees = -90.0
    east: _Degrees = 180.0
    north: _Degrees = 90.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=_MOST_POSITIONS)] = 20_000

    def has(self, place: tuple[float, float]) -> bool:
        """Return whether a place is in view."""
        lon, lat = place
        if not self.south <= lat <= self.north:
            return False
        if self.west <= self.east:
            return self.west <= lon <= self.east
        return lon >= self.west or lon <= self.east


class PositionList(msgspec.Struct, frozen=True):
    """Connected clients with their longitude and latitude; `left_out`: above the limit."""

    t: int
    clients: list[tuple[str, float, float]]
    left_out: int


class NearCircle(msgspec.Struct, frozen=True):
    """A `$near` subscription of a client whose position is known."""

    client: str
    lon: float
    lat: float
    radius_m: float
    filter: str


class AreaShape(msgspec.Struct, frozen=True):
    """An `$area` subscription."""

    client: str
    filter: str
    geometry: dict[str, Any]


class ShapeList(msgspec.Struct, frozen=True):
    """What subscriptions cover, in view; `left_out`: above the limit, counted to a thousand."""

    near: list[NearCircle]
    areas: list[AreaShape]
    left_out: int


class ShapesQuery(ViewQuery, frozen=True, forbid_unknown_fields=True):
    """A part of the map."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=_MOST_SHAPES)] = 2_000


class PlanQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which plan: the one in force, or the one before it."""

    version: str = "current"


def check_positions(call: Call) -> None:
    """Raise a ProblemError if positions are shown to nobody."""
    if not call.site.section.positions:
        raise ProblemError(
            HTTPStatus.FORBIDDEN, "positions are not shown: [http] positions is false"
        )


_SHOWN = merged(clients=joined, left_out=added)
_SHAPES = merged(near=joined, areas=joined, left_out=added)


@endpoint("GET", "/api/positions", role=Role.OPERATOR, query=ViewQuery, gather=_SHOWN)
async def positions(call: Call) -> PositionList:
    """Return where the connected clients of this node are."""
    check_positions(call)
    view: ViewQuery = call.query
    rows: list[tuple[str, float, float]] = []
    left_out = 0
    async for one in in_slices(call.site.node.client_sessions()):
        if one.position is None or one.link is None or one.is_onlooker:
            continue
        if not view.has(one.position):
            continue
        if len(rows) < view.limit:
            rows.append((one.client_id, *one.position))
        else:
            left_out += 1
    return PositionList(call.site.now_ms, rows, left_out)


@endpoint(
    "GET",
    "/api/shapes",
    role=Role.OPERATOR,
    query=ShapesQuery,
    gather=_SHAPES,
    spans_nodes=True,
)
async def shapes(call: Call) -> ShapeList:
    """Return `$near` circles and `$area` shapes of connected clients."""
    check_positions(call)
    view: ShapesQuery = call.query
    near: list[NearCircle] = []
    areas: list[AreaShape] = []
    left_out = 0
    async for one in in_slices(call.site.node.inspection.content_subscriptions()):
        if left_out >= _MOST_COUNTED:
            break
        session, asked = one.session, one.selection
        if asked is None or session.is_peer or session.is_onlooker or session.link is None:
            continue
        is_full = len(near) + len(areas) >= view.limit
        at = session.position
        if asked.near_m is not None and at is not None and view.has(at):
            left_out += is_full
            if not is_full:
                name = session.client_id
                near.append(NearCircle(name, *at, asked.near_m, one.topic_filter))
        elif asked.near_m is None and asked.area is not None and _is_in_view(view, asked.area):
            left_out += is_full
            geometry = None if is_full else geometry_of(asked.area)
            if geometry is not None:
                areas.append(AreaShape(session.client_id, one.topic_filter, geometry))
    return ShapeList(near, areas, left_out)


@endpoint("GET", "/api/plan", query=PlanQuery, kind=_GEOJSON)
def plan(call: Call) -> HttpAnswer:
    """Return the leaves of the plan as GeoJSON: that of the network, else the last one found."""
    named = None if call.query.version != "current" else call.site.sources.plan()
    if named is not None:
        from nearcast.locality.layout.drawing import plan_geojson

        document = msgspec.json.decode(plan_geojson(named.plan))
        for feature in document["features"]:
            feature["properties"]["node"] = named.nodes[feature["properties"]["broker"]]
        return _geojson(document)
    name = "plan.json" if call.query.version == "current" else "plan-before.json"
    for path in found_files(call.site, name):
        from nearcast.locality.layout.drawing import plan_geojson
        from nearcast.locality.layout.planfile import load_plan

        return _geojson(msgspec.json.decode(plan_geojson(load_plan(path))))
    return _geojson(_EMPTY)


@endpoint("GET", "/api/regions", kind=_GEOJSON)
def regions(call: Call) -> HttpAnswer:
    """Return the slow regions of the last pipeline run in the data directory as GeoJSON."""
    for path in found_files(call.site, "plan.geojson"):
        document = json_file(path)
        if isinstance(document, dict) and isinstance(document.get("features"), list):
            slow = [one for one in document["features"] if _is_slow(one)]
            return _geojson({"type": "FeatureCollection", "features": slow})
    return _geojson(_EMPTY)


def _is_slow(feature: Any) -> bool:
    if not isinstance(feature, dict) or not isinstance(feature.get("properties"), dict):
        return False
    return bool(feature["properties"].get("kind") == "slow region")


def _geojson(document: Any) -> HttpAnswer:
    return HttpAnswer(200, msgspec.json.encode(document), _GEOJSON)


def _is_in_view(view: ViewQuery, shape: Any) -> bool:
    """Return whether a shape's bounds meet the view; over the antimeridian all do."""
    if view.west > view.east:
        return True
    return any(
        west <= view.east and east >= view.west and south <= view.north and north >= view.south
        for west, south, east, north in shape.bounds()
    )
