"""The event log of a broker with walkers, offers and readings."""

import json
from datetime import UTC, datetime
from pathlib import Path

from tests.support.log_segments import write_segment

from nearcast.eventlog.records import Recorder

START = datetime(2026, 5, 1, 8, tzinfo=UTC)


def write_log(root: Path, *, events: int = 60, walkers: int = 4) -> None:
    """Write what a broker would have noted: walks, offers, and two topics with news."""
    start_ms = int(START.timestamp() * 1000)
    recorder = Recorder()
    for i in range(events):
        now = start_ms + 1000 * i
        for topic in ("plant/1", "plant/2"):
            recorder.events(1, now, 4, "machine", topic.encode(), b"hd21.5", 2)
        offer = json.dumps({"lon": 8.2 + 0.01 * (i % 50), "lat": 47.5}).encode()
        recorder.events(1, now, 0, "shop", b"shops/bakery", b"hd" + offer, 2)
        for walker in range(walkers):
            recorder.position(f"w{walker}", 8.3 + 1e-4 * i, 47.4 + 1e-3 * walker, now)
    recorder.subscription(start_ms + 9, "ann", "plant/+", 1, is_added=True)
    write_segment(root, "n1", recorder)
