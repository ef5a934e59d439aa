"""Decodes an event or a position from a payload or user properties, in a few microseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

from nearcast.model.attribute import Attribute
from nearcast.model.box import MISSING
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.model.event import Event
from nearcast.model.shape_text import Shape
from nearcast.model.space import Space
from nearcast.model.sphere import checked_place
from nearcast.model.wording import did_you_mean, listed, shown

Pairs = tuple[tuple[str, str], ...]
Position = tuple[float, float]
NO_PATHS: Mapping[str, tuple[str, ...]] = {}

_decoder = json.JSONDecoder()
_decode = _decoder.decode
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def read_json(payload: bytes) -> object:
    """Return the decoded JSON payload, or raise MisuseError; O(size)."""
    try:
        return _decode(payload.decode())
    except (ValueError, RecursionError) as problem:
        why = "nested too deep" if isinstance(problem, RecursionError) else str(problem)
        raise MisuseError(shown(payload), where="payload", expected=f"JSON ({why})") from None


class EventDecoder:
    """Decodes the events of one space, whose values are in the payload or in user properties.

    `paths` leads from the payload to an attribute, where that is not the field of its name.
    Complexity: O(payload + attributes).
    """

    def __init__(
        self,
        space: Space,
        values: Literal["json", "properties"] = "json",
        paths: Mapping[str, tuple[str, ...]] = NO_PATHS,
    ) -> None:
        self._space = space
        self._from_json = values == "json"
        self._source = "payload" if self._from_json else "user properties"
        self._paths = [paths.get(one.name, (one.name,)) for one in space.attributes]
        self._names = [path[0] for path in self._paths]
        self._is_flat = not self._from_json or all(len(path) == 1 for path in self._paths)
        self._columns = [
            (one, one.low, one.high, not one.is_category, one.name in (space.required or ()))
            for one in space.attributes
        ]

        fills = space.missing == "none"
        self._quick = [
            (
                one.name if len(path) == 1 else path,
                one.low,
                one.high,
                {name: float(code) for code, name in enumerate(one.categories)} or None,
                MISSING if fills and one.name not in (space.required or ()) else None,
            )
            for one, path in zip(space.attributes, self._paths, strict=True)
        ]

    def point(self, payload: bytes) -> tuple[float, ...] | None:
        """Return the event's point if the event is a valid point; None if it needs `read`."""
        try:
            text = payload.decode()
            found, end = _scan(text, 0)
            if end != len(text) or found.__class__ is not dict or not self._from_json:
                return None
            values: list[float] = []
            for name, low, high, codes, filler in self._quick:
                value: Any = found.get(name) if name.__class__ is str else _walk(found, name)  # type: ignore[arg-type]
                if value is None:
                    if filler is None:
                        return None
                    value = filler
                elif codes is not None:
                    value = codes.get(value)
                    if value is None:
                        return None
                elif not (
                    (value.__class__ is float or value.__class__ is int) and low <= value <= high
                ):
                    return None
                values.append(value)
            return tuple(values)
        except (ValueError, TypeError, RecursionError, StopIteration):
            return None

    def read(self, topic: str, payload: bytes, pairs: Pairs, area: Shape | None = None) -> Event:
        """Return the event, or raise MisuseError with the field and the expected value."""
        found = self._fields(payload, pairs)
        if self._is_flat:
            raw = [found.get(name) for name in self._names]
        else:
            raw = [_walk(found, path) for path in self._paths]
        if area is not None:
            return self._with_extent(topic, raw, area)
        values: list[float | None] = []
        for value, (attribute, low, high, is_number, required) in zip(
            raw, self._columns, strict=True
        ):
            if is_number and value.__class__ is float and low <= value <= high:
                values.append(value)
            elif value is None:
                if required:
                    raise self._missing(attribute, found)
                values.append(None)
            else:
                try:
                    values.append(attribute.encode(value, self._source))
                except OutOfRangeError as problem:
                    problem.todo = self._swap_hint(attribute, raw)
                    raise
        return Event(topic, self._space, tuple(values))

    def missing_text(self, event: Event, payload: bytes, pairs: Pairs) -> str:
        """Return the received and the known fields, if a field looks misspelt; else "".

        That is: a value is missing, and a field of a similar name was received, or no known one.
        """
        missing = [
            one.name
            for one, value in zip(self._space.attributes, event.values, strict=True)
            if value is None
        ]
        if not missing or event.area is not None:
            return ""
        came = [name for name in self._fields(payload, pairs) if not name.startswith("$")]
        strange = [name for name in came if name not in self._names]
        hints = (did_you_mean(name, missing) for name in strange)
        hint = next((text for text in hints if text), "")
        if not strange or not (hint or len(strange) == len(came)):
            return ""
        problem = MisuseError(
            f"no {listed(missing)}, but {listed(came)}",
            where=self._source,
            expected=f"fields of space {self._space.name}: {listed(self._known())}",
            todo=hint,
        )
        return str(problem)

    def _known(self) -> list[str]:
        return [".".join(path) for path in self._paths]

    def _swap_hint(self, attribute: Attribute, raw: list[object]) -> str:
        """Return a hint if longitude and latitude would be valid the other way round."""
        places = self._space.coordinates
        if places is None:
            return ""
        lon, lat = (self._space.attributes[place] for place in places)
        if attribute not in (lon, lat):
            return ""
        try:
            lat.encode(raw[places[0]])
            lon.encode(raw[places[1]])
        except MisuseError:
            return ""
        return f"Are {lon.name} (longitude) and {lat.name} (latitude) swapped?"

    def _fields(self, payload: bytes, pairs: Pairs) -> dict[str, object]:
        if not self._from_json:
            return dict(pairs)
        found = read_json(payload)
        if not isinstance(found, dict):
            raise MisuseError(shown(found), where="payload", expected="a JSON object")
        return found

    def _with_extent(self, topic: str, raw: list[object], area: Shape) -> Event:
        """Return an event that is somewhere in an area; its own coordinates do not count."""
        coordinates = self._space.coordinates or ()
        named = {
            one.name: value
            for place, (one, value) in enumerate(zip(self._space.attributes, raw, strict=True))
            if place not in coordinates
        }
        return Event.of(self._space, topic, named, area)

    def _missing(self, attribute: Attribute, found: dict[str, object]) -> MisuseError:
        """Return the error for a required value that is missing."""
        path = ".".join(self._paths[self._space.place_of(attribute.name)])
        came = [name for name in found if not name.startswith("$")]
        strange = [name for name in came if name not in self._names]
        return MisuseError(
            f"no {path}" + (f" among {listed(came)}" if came else ""),
            where=self._source,
            expected=f"a value ({attribute.range_text}), as space {self._space.name} requires it",
            todo=next((f"Is {name} meant?" for name in strange if did_you_mean(name, [path])), ""),
        )


def _walk(found: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def read_position(payload: bytes, pairs: Pairs) -> Position:
    """Return the position that a client published, in JSON or in user properties."""
    fields: object = dict(pairs)
    if payload:
        fields = read_json(payload)
    if not isinstance(fields, dict) or "lon" not in fields or "lat" not in fields:
        raise MisuseError(
            shown(payload or pairs),
            where="$position",
            expected='{"lon": …, "lat": …}, in degrees',
        )
    lon, lat = fields["lon"], fields["lat"]
    if lon.__class__ is float and lat.__class__ is float and abs(lon) <= 180 and abs(lat) <= 90:
        return lon, lat
    return checked_place(lon, lat, "$position")


def position_in(pairs: Pairs) -> Position | None:
    """Return the position in user properties: `$position` = `lon,lat`, or `lon` and `lat`."""
    fields = dict(pairs)
    written = fields.get("$position")
    if written is not None:
        lon, _, lat = written.partition(",")
        return checked_place(lon, lat, "$position")
    if "lon" in fields and "lat" in fields:
        return checked_place(fields["lon"], fields["lat"], "user properties")
    return None


def position_problem(pairs: Pairs) -> str:
    """Return the error in the position among user properties, or ""."""
    try:
        position_in(pairs)
    except MisuseError as problem:
        return str(problem)
    return ""
