"""The vocabulary of Nearcast: spaces, events, subscriptions, the `where` language and shapes.

    text ──parse_where──► Expression ──Space.boxes──► union of Box ──► index, matcher
    text ──parse_shape──► BoundingBox, Circle, Polygon ──boxes()──►    (cover)
                                                       ──contains──►   (exact)

Everything here is a value: frozen, comparable, safe to pickle. It does not read files, clocks or
sockets, does not check topic filters, and has no index: a Box knows whether it contains a
point, not which of a million boxes do (`nearcast.index`). Importing it imports neither NumPy nor
Shapely; the methods that need them do.

Read `errors`, then `attribute` and `box`; `expression` is the tree that `grammar` reads,
`printing` writes and `union` turns into boxes; `shapes` and `polygon` are the areas; `space`,
`event` and `subscription` combine all of it; `requests` reads the requests of clients in user
properties and topic prefixes.
"""

from nearcast.model.attribute import Attribute
from nearcast.model.box import ACCURACY_FLOOR, EVERYTHING, MISSING, Box, Interval
from nearcast.model.errors import (
    ConfigurationError,
    EnvironmentProblem,
    ExpressionError,
    FileFormatError,
    KeyInUseError,
    KeyMissingError,
    LimitError,
    MisuseError,
    NearcastError,
    OutOfRangeError,
    PeerProtocolError,
    ShapeError,
    UnknownNameError,
)
from nearcast.model.event import Event
from nearcast.model.polygon import Polygon
from nearcast.model.quantities import parse_duration, parse_length
from nearcast.model.ranks import RANKS
from nearcast.model.requests import (
    PublishRequest,
    SubscribeRequest,
    read_publication,
    read_subscription,
    split_prefixes,
)
from nearcast.model.shape_text import Shape, parse_shape, polygon_of
from nearcast.model.shapes import BoundingBox, Circle
from nearcast.model.space import Space
from nearcast.model.sphere import EARTH_RADIUS_M, distance_m
from nearcast.model.subscription import Subscription
from nearcast.model.where.expression import (
    NESTING_LIMIT,
    And,
    Between,
    Compare,
    Expression,
    Membership,
    Not,
    Or,
    ValueRange,
    names_in,
)
from nearcast.model.where.grammar import parse_where
from nearcast.model.where.levels import decode_level, encode_level
from nearcast.model.where.printing import where_level, where_text

__all__ = [
    "ACCURACY_FLOOR",
    "EARTH_RADIUS_M",
    "EVERYTHING",
    "MISSING",
    "NESTING_LIMIT",
    "RANKS",
    "And",
    "Attribute",
    "Between",
    "BoundingBox",
    "Box",
    "Circle",
    "Compare",
    "ConfigurationError",
    "EnvironmentProblem",
    "Event",
    "Expression",
    "ExpressionError",
    "FileFormatError",
    "Interval",
    "KeyInUseError",
    "KeyMissingError",
    "LimitError",
    "Membership",
    "MisuseError",
    "NearcastError",
    "Not",
    "Or",
    "OutOfRangeError",
    "PeerProtocolError",
    "Polygon",
    "PublishRequest",
    "Shape",
    "ShapeError",
    "Space",
    "SubscribeRequest",
    "Subscription",
    "UnknownNameError",
    "ValueRange",
    "decode_level",
    "distance_m",
    "encode_level",
    "names_in",
    "parse_duration",
    "parse_length",
    "parse_shape",
    "parse_where",
    "polygon_of",
    "read_publication",
    "read_subscription",
    "split_prefixes",
    "where_level",
    "where_text",
]
