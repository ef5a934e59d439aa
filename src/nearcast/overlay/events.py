"""Events in batches, and the kernel that finds which branches of a peer each event concerns.

An event is a point, or a box where values are missing. Events that go the same way at the same
instant travel as one `EventBatch`: flat arrays, so that one compiled call handles all of them.

Read next: `messages.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearcast.kernels import entry_point
from nearcast.model.errors import MisuseError, OutOfRangeError
from nearcast.overlay.bounds import Bounds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OverlayEvent:
    """One published event. A missing value is the side (-inf, +inf): all values (paper 3).

    `event_id` is unique among the events in flight; equal ids are one event.
    """

    event_id: Hashable
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    payload: bytes = b""

    @classmethod
    def point(
        cls, event_id: Hashable, values: Iterable[float], payload: bytes = b""
    ) -> OverlayEvent:
        """Return an event with a value for every attribute."""
        corner = tuple(map(float, values))
        return cls(event_id, corner, corner, payload)


@dataclass(frozen=True, slots=True, eq=False)
class EventBatch:
    """Some events as arrays: row i of `lows` and `highs` is the event `ids[i]`."""

    ids: tuple[Hashable, ...]
    lows: Floats
    highs: Floats
    payloads: tuple[bytes, ...]
    hops: Ints
    """How many times each event was sent from one peer to another so far."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, events: Sequence[OverlayEvent], dimensions: int) -> EventBatch:
        """Return the events as a batch; raise for NaN, low above high and wrong lengths."""
        for event in events:
            _check(event, dimensions)
        return cls(
            tuple(event.event_id for event in events),
            np.array([event.lows for event in events], dtype=np.float64),
            np.array([event.highs for event in events], dtype=np.float64),
            tuple(event.payload for event in events),
            np.zeros(len(events), dtype=np.int64),
        )

    def take(self, places: Ints) -> EventBatch:
        """Return the events at some positions; O(len(places))."""
        listed = places.tolist()
        ids, payloads = self.ids, self.payloads
        return EventBatch(
            tuple([ids[i] for i in listed]),
            self.lows[places],
            self.highs[places],
            tuple([payloads[i] for i in listed]),
            self.hops[places],
        )

    def sent(self) -> EventBatch:
        """Return the same events one hop further."""
        return EventBatch(self.ids, self.lows, self.highs, self.payloads, self.hops + 1)

    def events(self) -> Iterator[OverlayEvent]:
        """Return the events one by one."""
        for event_id, low, high, payload in zip(
            self.ids, self.lows.tolist(), self.highs.tolist(), self.payloads, strict=True
        ):
            yield OverlayEvent(event_id, tuple(low), tuple(high), payload)


def _check(event: OverlayEvent, dimensions: int) -> None:
    if len(event.lows) != dimensions or len(event.highs) != dimensions:
        raise MisuseError(
            f"{len(event.lows)} values", where="an event", expected=f"{dimensions}, one each"
        )
    for low, high in zip(event.lows, event.highs, strict=True):
        if not low <= high:
            raise OutOfRangeError(
                f"{low} to {high}", where="an event", expected="two numbers, the lower first"
            )


def together(batches: Sequence[EventBatch]) -> EventBatch:
    """Return all events of the batches as one batch, in order."""
    if len(batches) == 1:
        return batches[0]
    return EventBatch(
        tuple([i for batch in batches for i in batch.ids]),
        np.concatenate([batch.lows for batch in batches]),
        np.concatenate([batch.highs for batch in batches]),
        tuple([p for batch in batches for p in batch.payloads]),
        np.concatenate([batch.hops for batch in batches]),
    )


def stacked(boxes: Sequence[Bounds]) -> tuple[Floats, Floats]:
    """Return boxes as two arrays, one row each."""
    return (
        np.array([box[0] for box in boxes], dtype=np.float64),
        np.array([box[1] for box in boxes], dtype=np.float64),
    )


@entry_point("float64[:, ::1], float64[:, ::1], float64[:, ::1], float64[:, ::1], int64")
def hits(
    lows: Floats, highs: Floats, row_lows: Floats, row_highs: Floats, counted: int
) -> tuple[Ints, Ints, int]:
    """Return which events meet each row: `places[starts[r]:starts[r + 1]]`.

    The third value is the number of events that meet none of the first `counted` rows. O(events ×
    rows × n).
    """
    events, rows, n = lows.shape[0], row_lows.shape[0], lows.shape[1]
    starts = np.zeros(rows + 1, dtype=np.int64)
    places = np.empty(rows * events, dtype=np.int64)
    touched = np.zeros(events, dtype=np.bool_)
    found = 0
    for row in range(rows):
        for event in range(events):
            meets = True
            for axis in range(n):
                if (
                    lows[event, axis] > row_highs[row, axis]
                    or highs[event, axis] < row_lows[row, axis]
                ):
                    meets = False
                    break
            if meets:
                places[found] = event
                touched[event] = touched[event] or row < counted
                found += 1
        starts[row + 1] = found
    return starts, places[:found], events - int(touched.sum())
