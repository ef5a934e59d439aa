"""Arguments of a `BoxIndex`: checked, converted, or refused with a reason."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nearcast.model.box import ACCURACY_FLOOR
from nearcast.model.errors import (
    KeyInUseError,
    KeyMissingError,
    LimitError,
    MisuseError,
    OutOfRangeError,
    UnknownNameError,
)
from nearcast.model.ranks import kernel_ranks

MOST_DIMENSIONS: Final = 64  # a leaf's attributes are the bits of one word
MOST_BOXES: Final = 2**30  # positions are int32, and leaves are not full
RANKS: Final = kernel_ranks()
# Numba compiles a kernel again for a read-only array: such an array is copied.
AS_COMPILED: Final = ("C", "W")
_SINGLE_RANKS: Final = dict(zip(RANKS, np.identity(3), strict=True))
FLOOR_LOG2: Final = math.log2(ACCURACY_FLOOR)  # of a width, as a share of a known range
FLOOR_LOG2_UNKNOWN: Final = -1074.0  # of a width where the range is unknown

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bounds = Sequence[float] | npt.NDArray[Any]
Rank = str | Mapping[str, float]


def dimensions_of(value: object) -> int:
    """Return a valid number of attributes, or raise."""
    dims = whole(value, "dimensions")
    if dims > MOST_DIMENSIONS:
        raise LimitError(str(dims), where="dimensions", expected=f"at most {MOST_DIMENSIONS}")
    return dims


def whole(value: object, where: str) -> int:
    """Return an integer of at least 1, or raise."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise MisuseError(repr(value), where=where, expected="a whole number from 1") from None
    if isinstance(value, bool) or number < 1:
        raise MisuseError(repr(value), where=where, expected="a whole number from 1")
    return number


def key_of(value: object) -> int:
    """Return a valid key, or raise."""
    try:
        key = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise MisuseError(repr(value), where="key", expected="a whole number") from None
    if not -(2**63) <= key < 2**63:
        raise OutOfRangeError(repr(value), where="key", expected="a whole number of 64 bits")
    return key


def keys_of(values: npt.ArrayLike, count: int) -> Ints:
    """Return an array of `count` keys."""
    keys = np.asarray(values)
    if keys.shape != (count,) or (count and keys.dtype.kind not in "iu"):
        raise MisuseError(
            f"keys of shape {keys.shape} and type {keys.dtype}",
            where="from_arrays",
            expected=f"{count} whole numbers, one for each box",
        )
    if keys.dtype == np.uint64 and count and keys.max() > np.uint64(2**63 - 1):
        raise OutOfRangeError(str(keys.max()), where="keys", expected="whole numbers of 64 bits")
    return np.require(keys, np.int64, AS_COMPILED)


def weight_of(value: object) -> float:
    """Return a weight: any finite number."""
    try:
        weight = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise MisuseError(repr(value), where="weight", expected="a number") from None
    if not math.isfinite(weight):
        raise OutOfRangeError(repr(value), where="weight", expected="a finite number")
    return weight


def weights_of(values: npt.ArrayLike | None, count: int) -> Floats:
    """Return an array of `count` weights, or an empty one where none are given."""
    if values is None:
        return np.empty(0)
    weights = numbers(values, "weights")
    if weights.shape != (count,):
        raise MisuseError(
            f"weights of shape {weights.shape}", where="from_arrays", expected=f"{count} numbers"
        )
    if not np.isfinite(weights).all():
        raise OutOfRangeError("NaN or infinity", where="weights", expected="finite numbers")
    return weights


def numbers(values: npt.ArrayLike, where: str) -> Floats:
    """Return a contiguous float64 array."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "iufb" and array.size:
            raise ValueError
        return np.require(array, np.float64, AS_COMPILED)
    except (TypeError, ValueError):
        raise MisuseError(
            "something that is not numbers", where=where, expected="numbers"
        ) from None


def rows_of(values: npt.ArrayLike, dims: int | None, where: str) -> Floats:
    """Return a contiguous array of shape (n, dims); any number of columns if dims is None."""
    rows = numbers(values, where)
    if rows.size == 0 and rows.ndim < 2 and dims is not None:
        return rows.reshape(0, dims)
    if rows.ndim != 2 or (dims is not None and rows.shape[1] != dims):
        columns = "attributes" if dims is None else str(dims)
        raise MisuseError(
            f"an array of shape {rows.shape}", where=where, expected=f"shape (n, {columns})"
        )
    return rows


def boxes_of(lows: Floats, highs: Floats) -> Floats:
    """Return boxes one after another, low and high alternating."""
    if lows.shape != highs.shape:
        raise MisuseError(
            f"lows of shape {lows.shape} and highs of shape {highs.shape}",
            expected="the same shape",
        )
    boxes = np.empty((len(lows), 2 * lows.shape[1]))
    boxes[:, 0::2], boxes[:, 1::2] = lows, highs
    bad = np.flatnonzero(~are_boxes(lows, highs))
    if bad.size:
        raise bad_box(lows[bad[0]], highs[bad[0]], f"row {bad[0]}")
    return boxes.ravel()


def is_box(lows: Bounds, highs: Bounds) -> bool:
    """Return whether low <= high in every attribute, with no NaN, nor +inf low, nor -inf high."""
    for low, high in zip(lows, highs, strict=True):
        if not low <= high or low == math.inf or high == -math.inf:
            return False
    return True


def are_boxes(lows: Floats, highs: Floats) -> npt.NDArray[np.bool_]:
    """Return for each row whether low <= high, with no NaN, nor +inf low, nor -inf high."""
    are = (lows <= highs) & (lows < np.inf) & (highs > -np.inf)
    return np.asarray(are.all(axis=-1))


def extent_of(extent: tuple[Bounds, Bounds] | None, dims: int) -> Floats:
    """Return low and high of each attribute's range, then the two floors of narrowness."""
    array = np.empty(2 * dims + 2)
    array[0 : 2 * dims : 2], array[1 : 2 * dims : 2] = -np.inf, np.inf
    array[-2:] = FLOOR_LOG2, FLOOR_LOG2_UNKNOWN
    if extent is None:
        return array
    if not isinstance(extent, tuple | list) or len(extent) != 2:
        raise MisuseError(repr(extent), where="extent", expected="a pair (lows, highs)")
    lows, highs = numbers(extent[0], "extent"), numbers(extent[1], "extent")
    if lows.shape != (dims,) or highs.shape != (dims,):
        raise MisuseError(
            f"{lows.shape} lows and {highs.shape} highs", where="extent", expected=f"{dims} of each"
        )
    if not (lows < highs).all():
        raise OutOfRangeError(f"{extent}", where="extent", expected="low < high, and no NaN")
    array[0 : 2 * dims : 2], array[1 : 2 * dims : 2] = lows, highs
    return array


def blend_of(rank: Rank) -> Floats:
    """Return the share of narrowness, distance from the centre, and weight in a rank."""
    if isinstance(rank, str):
        return _single_rank(rank)
    if not isinstance(rank, Mapping):
        raise MisuseError(repr(rank), where="rank", expected="a name or a mapping of names")
    blend = np.zeros(3)
    for name, share in rank.items():
        number = weight_of(share)
        if number < 0:
            raise OutOfRangeError(repr(share), where=f"rank {name}", expected="0 or more")
        blend += _single_rank(name) * number
    if not blend.any() or not np.isfinite(blend).all():
        raise OutOfRangeError(repr(rank), where="rank", expected="one share above 0")
    return blend


def _single_rank(name: object) -> Floats:
    if not isinstance(name, str) or name not in RANKS:
        raise UnknownNameError(repr(name), where="rank", expected=f"one of {', '.join(RANKS)}")
    return _SINGLE_RANKS[name]


def key_in_use(key: int) -> KeyInUseError:
    """Return the error for a key that already exists."""
    return KeyInUseError(
        f"key {key}, which is there already",
        where="BoxIndex",
        expected="a new key",
        todo="Use move to give it another box.",
    )


def key_missing(key: int) -> KeyMissingError:
    """Return the error for a key that does not exist."""
    return KeyMissingError(
        f"key {key}, which is not there", where="BoxIndex", expected="a key that was added"
    )


def bad_box(lows: Floats, highs: Floats, where: str = "box") -> OutOfRangeError:
    """Return the error for an invalid box."""
    return OutOfRangeError(
        f"lows {lows.tolist()} and highs {highs.tolist()}",
        where=where,
        expected="low <= high in every attribute, no NaN, -inf only as low, +inf only as high",
    )


def not_finite(where: str) -> OutOfRangeError:
    """Return the error for an event with NaN or infinity."""
    return OutOfRangeError(
        "NaN or infinity",
        where=where,
        expected="finite numbers",
        todo="Use match_box for an event with missing values.",
    )


def wrong_length(found: object, dims: int) -> MisuseError:
    """Return the error for a value without one number for each attribute."""
    return MisuseError(repr(found), where="bounds or point", expected=f"{dims} numbers")
