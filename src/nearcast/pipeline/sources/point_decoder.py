"""Decodes the JSON payloads of points, many at once, into an array of values.

A payload becomes a typed record at once, without a dictionary and a check in Python for each value.
What is no such record stays open: a value of another type or outside its range, bytes that are no
text. `EventDecoder` reads these one by one and knows what to answer, so both give the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearcast.model import MISSING, Attribute, Space

_MOST_BYTES = 4_000  # Python refuses numbers of more than 4,300 digits, msgspec does not


class PointDecoder:
    """Decodes payloads that have the attributes of a space in these fields. O(bytes)."""

    def __init__(self, space: Space, names: Sequence[str]) -> None:
        self._made_of = space, tuple(names)
        self._attributes = space.attributes
        self._required = space.required or frozenset()
        fields = [
            (f"a{place}", (str if attribute.is_category else float) | None, None)
            for place, attribute in enumerate(space.attributes)
        ]
        of_fields = {f"a{place}": name for place, name in enumerate(names)}
        record = msgspec.defstruct("Point", fields, rename=of_fields, gc=False)
        self._decode = msgspec.json.Decoder(record).decode
        self._nothing = record()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to Spark's workers as what it was made of: a decoder of msgspec cannot."""
        return PointDecoder, self._made_of

    def decode(self, payloads: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return a row of values for each payload, MISSING where one is absent, and what is open.

        The values of an open payload mean nothing.
        """
        values = np.empty((len(payloads), len(self._attributes)))
        is_open = np.ones(len(payloads), np.bool_)
        try:
            payloads.cast(pa.string())
        except pa.ArrowInvalid:  # not UTF-8, which msgspec does not check everywhere
            return values, is_open
        records = [self._record(payload) for payload in payloads.to_pylist()]
        is_open = np.fromiter((one is None for one in records), np.bool_, len(records))
        is_open |= pc.greater(pc.binary_length(payloads), _MOST_BYTES).to_numpy(
            zero_copy_only=False
        )
        whole = [self._nothing if one is None else one for one in records]
        for place, attribute in enumerate(self._attributes):
            name = f"a{place}"
            column = _numbers([getattr(one, name) for one in whole], attribute)
            values[:, place] = column
            is_good = (attribute.low <= column) & (column <= attribute.high)
            if attribute.name not in self._required:
                is_good |= column == MISSING
            is_open |= ~is_good
        return values, is_open

    def _record(self, payload: bytes | None) -> Any:
        try:
            return self._decode(payload or b"")
        except (msgspec.MsgspecError, RecursionError):
            return None


def _numbers(found: list[Any], attribute: Attribute) -> np.ndarray:
    """Return values as numbers, MISSING for None and NaN for a category that is none."""
    if attribute.is_category:
        codes = {name: float(code) for code, name in enumerate(attribute.categories)}
        found = [MISSING if one is None else codes.get(one, np.nan) for one in found]
    elif None in found:
        found = [MISSING if one is None else one for one in found]
    return np.array(found, np.float64)
