"""Arguments of the interval skip list: checked, converted, or refused with an error."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, NoReturn, SupportsFloat, SupportsIndex

import numpy as np

from nearcast.index.boxes.input import AS_COMPILED, Rank, keys_of
from nearcast.model.errors import (
    KeyInUseError,
    KeyMissingError,
    MisuseError,
    OutOfRangeError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

METHODS = ("exact", "paper")

# The kernels' results other than OK; the numbers are defined in `kernels.py`.
_KEY_IN_USE = 1
_MISTAKES = {
    3: (OutOfRangeError, "a bound that is not a number", "numbers, or infinity for no bound"),
    4: (OutOfRangeError, "a low bound above the high bound", "low <= high"),
    5: (OutOfRangeError, "an interval that contains nothing", "at least one value inside"),
    6: (OutOfRangeError, "a weight that is not finite", "a finite weight"),
}


def complain(mistake: int, key: int, low: float, high: float, where: str) -> NoReturn:
    """Raise the error for a kernel's result."""
    if mistake == _KEY_IN_USE:
        raise KeyInUseError(
            f"key {key}, which is there already",
            where=where,
            expected="a new key",
            todo="Remove the old interval first",
        )
    kind, found, expected = _MISTAKES[mistake]
    raise kind(f"{found} ({low!r}, {high!r}) for key {key}", where=where, expected=expected)


def missing(key: object, where: str) -> KeyMissingError:
    """Return the error for a key that does not exist."""
    return KeyMissingError(f"key {key}, which is not there", where=where, expected="a present key")


def bad_value(value: float, where: str) -> OutOfRangeError:
    """Return the error for a value that no interval can contain."""
    return OutOfRangeError(repr(value), where=where, expected="a finite number")


def number(value: SupportsFloat, where: str) -> float:
    """Return a bound or a weight as a float."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise MisuseError(repr(value), where=where, expected="a number") from error


def checked_k(k: SupportsIndex) -> int:
    """Return k as an integer of at least 1, or raise."""
    try:
        number = operator.index(k)
    except TypeError as error:
        raise MisuseError(repr(k), where="k", expected="a whole number from 0") from error
    if number < 0:
        raise OutOfRangeError(str(number), where="k", expected="a whole number from 0")
    return number


def checked_extent(extent: tuple[float, float] | None) -> tuple[float, float]:
    """Return the attribute's range; both infinite if none was given."""
    if extent is None:
        return -math.inf, math.inf
    low, high = float(extent[0]), float(extent[1])
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OutOfRangeError(
            repr((low, high)), where="extent", expected="two finite numbers, the lower one first"
        )
    return low, high


def checked_method(method: str, rank: Rank) -> str:
    """Return the method if it exists and supports the rank."""
    if method not in METHODS:
        raise UnknownNameError(
            f"method {method!r}", where="method", expected=f"one of {', '.join(METHODS)}"
        )
    if method == "paper" and rank != "narrowest":
        raise MisuseError(
            f"rank {rank!r} with method 'paper'", where="method", expected="rank 'narrowest'"
        )
    return method


def key_array(keys: ArrayLike) -> NDArray[np.int64]:
    """Return keys as a flat array of integers."""
    given = np.atleast_1d(np.asarray(keys))
    return keys_of(given, len(given))


def column(values: ArrayLike, length: int, name: str) -> NDArray[np.float64]:
    """Return one float for each key; a single number applies to all."""
    given = np.asarray(values, dtype=np.float64)
    if given.shape not in {(), (length,)}:
        raise MisuseError(
            f"an array of shape {given.shape}", where=name, expected=f"{length} numbers, or one"
        )
    return np.require(np.broadcast_to(given, (length,)), np.float64, AS_COMPILED)


def value_array(xs: ArrayLike, where: str) -> NDArray[np.float64]:
    """Return values to query, all finite."""
    given = np.require(np.atleast_1d(xs), np.float64, AS_COMPILED)
    if given.ndim != 1:
        raise MisuseError(f"an array of shape {given.shape}", where=where, expected="one axis")
    if not np.isfinite(given).all():
        worst = int(np.flatnonzero(~np.isfinite(given))[0])
        raise bad_value(float(given[worst]), f"{where}, row {worst}")
    return given
