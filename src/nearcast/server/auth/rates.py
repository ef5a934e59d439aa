"""Token buckets: how often something may happen, by name; full ones are forgotten."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_KEPT = 50_000


@dataclass(slots=True)
class Bucket:
    """A bucket that refills; it may go below zero, and is then empty until it has refilled."""

    per_ms: float
    most: float
    level: float
    seen_ms: int

    def fill(self, now_ms: int) -> float:
        """Return how much is in it now."""
        self.level = min(self.most, self.level + (now_ms - self.seen_ms) * self.per_ms)
        self.seen_ms = now_ms
        return self.level

    def wait_ms(self) -> int:
        """Return how long until there is one whole piece, as of the last `fill`."""
        return 0 if self.level >= 1 else int((1 - self.level) / self.per_ms) + 1


class Buckets:
    """Buckets of one rate, by name.

    Complexity: O(1) per call, amortised; at most `_MOST_KEPT` buckets.
    """

    def __init__(self, rate: tuple[float, float]) -> None:
        self.rate = rate
        self._buckets: dict[str, Bucket] = {}

    def of(self, name: str, now_ms: int) -> Bucket:
        """Return the bucket of a name, filled up to now."""
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= _MOST_KEPT:
                self._drop_full(now_ms)
            bucket = self._buckets[name] = self.new(now_ms)
        bucket.fill(now_ms)
        return bucket

    def new(self, now_ms: int) -> Bucket:
        """Return a full bucket of this rate, without a name."""
        per_s, most = self.rate
        return Bucket(per_s / 1000, most, most, now_ms)

    def take(self, name: str, now_ms: int) -> bool:
        """Take one piece of a name's bucket; return False if it is empty."""
        bucket = self.of(name, now_ms)
        if bucket.level < 1:
            return False
        bucket.level -= 1
        return True

    def _drop_full(self, now_ms: int) -> None:
        """Forget the full buckets, and if most are in use, the half that was used longest ago."""
        kept = {name: one for name, one in self._buckets.items() if one.fill(now_ms) < one.most}
        if len(kept) > _MOST_KEPT // 2:
            kept = dict(list(kept.items())[len(kept) // 2 :])
        self._buckets = kept
