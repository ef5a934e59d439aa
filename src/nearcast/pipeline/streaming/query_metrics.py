"""What a stream has done: for people, for JSON, and for Prometheus.

Spark reports after every batch (`StreamListener`); the batches themselves report what they wrote.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

LINE_EVERY_S = 10.0

_HELP = {
    "batches_total": "Batches that are complete",
    "events_total": "Events that were read",
    "deliveries_total": "Deliveries that were written",
    "rejected_total": "Events that could not be matched",
    "late_total": "Events that came later than allowed",
    "batch_seconds_sum": "Seconds that batches took",
    "last_batch_seconds": "Seconds that the last batch took",
    "last_batch_events": "Events in the last batch",
    "events_per_second": "Events a second, in the last batch",
    "behind_events": "Events that wait at the source, as of the last batch",
}


class QueryMetrics:
    """Sums of one query; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(_HELP, 0.0)

    def wrote(self, rows: Mapping[str, int]) -> None:
        """Add what a batch wrote, by table."""
        with self._lock:
            for table, count in rows.items():
                self._values[f"{table}_total"] += count

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Add Spark's report of a batch; a report of an idle query has no batch."""
        durations = progress.get("durationMs") or {}
        if "addBatch" not in durations:
            return
        events = float(progress.get("numInputRows") or 0)
        seconds = float(durations.get("triggerExecution") or 0) / 1000
        with self._lock:
            values = self._values
            values["batches_total"] += 1
            values["events_total"] += events
            values["batch_seconds_sum"] += seconds
            values["last_batch_seconds"] = seconds
            values["last_batch_events"] = events
            values["events_per_second"] = events / seconds if seconds else 0.0
            values["behind_events"] = _behind(progress.get("sources") or ())

    def fields(self) -> dict[str, float]:
        """Return all values, for JSON."""
        with self._lock:
            return {name: round(value, 3) for name, value in self._values.items()}

    def line(self) -> str:
        """Return the values in one line, for people."""
        now = self.fields()
        text = (
            f"stream: {now['batches_total']:.0f} batches, {now['events_total']:,.0f} events, "
            f"{now['deliveries_total']:,.0f} deliveries; last batch "
            f"{now['last_batch_events']:,.0f} events in {now['last_batch_seconds']:.1f} s"
        )
        rest = {"rejected": now["rejected_total"], "late": now["late_total"]}
        rest["waiting"] = now["behind_events"]
        return text + "".join(f", {count:,.0f} {name}" for name, count in rest.items() if count)

    def page(self) -> str:
        """Return the values for Prometheus."""
        lines = []
        for name, value in self.fields().items():
            kind = "counter" if name.endswith(("_total", "_sum")) else "gauge"
            full = f"nearcast_stream_{name}"
            lines += [f"# HELP {full} {_HELP[name]}", f"# TYPE {full} {kind}", f"{full} {value:g}"]
        return "\n".join(lines) + "\n"


def _behind(sources: Any) -> float:
    """Return how many events wait at the sources, where Spark knows it."""
    return sum(_waiting(source) for source in sources)


def _waiting(source: Mapping[str, Any]) -> float:
    metrics = source.get("metrics") or {}
    for name in ("numFilesOutstanding", "avgOffsetsBehindLatest"):
        if name in metrics:
            share = len(_offsets(source.get("latestOffset"))) or 1 if name.startswith("avg") else 1
            return float(metrics[name]) * share
    return 0.0


def _offsets(offset: Any) -> list[Any]:
    """Return the partitions of Kafka's offsets: {"topic": {"0": 5}}."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(found, Mapping):
        return []
    return [one for topic in found.values() if isinstance(topic, Mapping) for one in topic]


class StreamListener(StreamingQueryListener):
    """Passes Spark's reports on queries to `QueryMetrics`."""

    def __init__(self, metrics: QueryMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Add a report."""
        self._metrics.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


@contextmanager
def metrics_served(metrics: QueryMetrics, host: str, port: int) -> Iterator[int]:
    """Serve the values at /metrics while the body runs; yield the port."""
    server = ThreadingHTTPServer((host, port), partial(_Page, metrics.page))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Page(BaseHTTPRequestHandler):
    """Answers GET /metrics."""

    timeout = 10

    def __init__(self, page: Callable[[], str], *rest: Any) -> None:
        self._page = page
        super().__init__(*rest)

    def do_GET(self) -> None:
        """Answer a request."""
        body = self._page().encode() if self.path == "/metrics" else b"see /metrics\n"
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""
