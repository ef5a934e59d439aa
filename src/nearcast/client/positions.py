"""The position of a client, as a payload or as user properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.client.pairs import Pairs, paho_properties
from nearcast.model.quantities import number_text
from nearcast.model.sphere import checked_place

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties

POSITION_TOPIC = "$position"
DECIMALS = 6  # about 0.1 m; GPS is no more precise


def position(lon: float, lat: float) -> bytes:
    """Return the payload to publish to `$position`; all `$near` subscriptions follow.

    >>> position(-122.40791234, 37.7875)
    b'{"lon":-122.407912,"lat":37.7875}'
    >>> position(37.7875, -122.4079)
    Traceback (most recent call last):
        ...
    nearcast.model.errors.OutOfRangeError: position: found latitude -122.4079; expected degrees \
from -90 to 90. Longitude comes first, then latitude: are the two swapped?
    """
    east, north = _checked(lon, lat)
    return f'{{"lon":{east},"lat":{north}}}'.encode()


def position_pairs(lon: float, lat: float) -> Pairs:
    """Return the position as user properties of CONNECT.

    >>> position_pairs(2.35, 48.85)
    (('lon', '2.35'), ('lat', '48.85'))
    """
    east, north = _checked(lon, lat)
    return (("lon", east), ("lat", north))


def position_properties(lon: float, lat: float, base: Properties | None = None) -> Properties:
    """Return paho's properties for `connect`: the position is known from the start.

    >>> position_properties(2.35, 48.85).UserProperty
    [('lon', '2.35'), ('lat', '48.85')]
    """
    return paho_properties("CONNECT", position_pairs(lon, lat), base)


def _checked(lon: float, lat: float) -> tuple[str, str]:
    east, north = (
        number_text(round(one, DECIMALS) + 0.0) for one in checked_place(lon, lat, "position")
    )
    return east, north
