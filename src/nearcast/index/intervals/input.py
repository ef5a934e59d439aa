"""Arguments of interval lists: checked, or refused with a reason; and the steps of narrowness."""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from nearcast.model.box import ACCURACY_FLOOR
from nearcast.model.errors import KeyInUseError, KeyMissingError, OutOfRangeError

LARGEST = sys.float_info.max
_STEPS = 2.0**24  # accuracies are compared in steps of 2^-24 bits, as the box index does


def checked_range(extent: tuple[float, float]) -> tuple[float, float]:
    """Return an attribute's range, or raise."""
    low, high = (float(end) for end in extent)
    if not (low < high and math.isfinite(high - low)):
        raise OutOfRangeError(repr(extent), where="extent", expected="two finite ends, low < high")
    return low, high


def check_interval(low: float, high: float, weight: float, where: str) -> None:
    """Raise for an interval that is not closed and finite, or a weight that is not finite."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise OutOfRangeError(f"{low!r} and {high!r}", where=where, expected="two finite ends")
    if low > high or not math.isfinite(high - low):
        raise OutOfRangeError(f"{low!r} and {high!r}", where=where, expected="low <= high")
    if not math.isfinite(weight):
        raise OutOfRangeError(repr(weight), where=f"{where}: weight", expected="a finite number")


def steps_of(low: float, high: float, span: float) -> int:
    """Return the narrowness log2(width / range) in steps, 0 for the whole range."""
    share = min(max((high - low) / span, ACCURACY_FLOOR), 1.0)
    return math.floor(math.log2(share) * _STEPS + 0.5)


def steps_of_all(
    lows: NDArray[np.float64], highs: NDArray[np.float64], extent: tuple[float, float]
) -> NDArray[np.int64]:
    """Return `steps_of` for many intervals."""
    shares = np.clip((highs - lows) / (extent[1] - extent[0]), ACCURACY_FLOOR, 1.0)
    return np.floor(np.log2(shares) * _STEPS + 0.5).astype(np.int64)


def key_in_use(key: int, where: str) -> KeyInUseError:
    """Return the error for a key that already exists."""
    return KeyInUseError(f"key {key}, which is there already", where=where, expected="a new key")


def key_missing(key: int, where: str) -> KeyMissingError:
    """Return the error for a key that does not exist."""
    return KeyMissingError(f"key {key}, which is not there", where=where, expected="a present key")


def not_finite(value: float, where: str) -> OutOfRangeError:
    """Return the error for a value that no interval can contain."""
    return OutOfRangeError(repr(value), where=where, expected="a finite number")
