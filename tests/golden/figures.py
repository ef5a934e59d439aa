"""Figures: `$SYS` topics and the form of their values, Prometheus metrics, counters, log events."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden import frames
from tests.golden.golden import Maker
from tests.support.rules import KnownUsers, allow

from nearcast.broker import Broker, Connection, Counters, Session
from nearcast.config import load
from nearcast.mqtt import Connect, ReasonCode
from nearcast.ordering import DiscardReason
from nearcast.server import Server
from nearcast.server.client_log import BrokerAcceptPolicy, ClientLog
from nearcast.server.log_format import JsonLines
from nearcast.server.metrics.exposition import prometheus_text, sys_topics

_FORMS = {
    r"\d+": "a whole number",
    r"\d+ seconds": "seconds",
    r"nearcast version \S+": "version",
    "compiled|plain": "compiled or plain",
}


def topics() -> str:
    """Return the `$SYS` topics of a node in a network, each with the form of its value."""
    lines = []
    node = frames.scene([]).nodes["n0"].node
    node.state.access = KnownUsers([], [allow("$SYS/#")])  # without rules some are left out
    for topic, value in sys_topics(node, uptime_s=12):
        form = next(told for form, told in _FORMS.items() if re.fullmatch(form, value))
        lines.append(f"$SYS/broker/{topic}: {form}")
    return "\n".join(lines) + "\n"


def metrics(text: str) -> list[str]:
    """Return name, type, labels and whether there is help, of each metric of a page."""
    found: dict[str, list[str]] = {}
    helped = set(re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE):
        found[name] = [f"{name} {kind} {'with' if name in helped else 'WITHOUT'} help"]
    for series, labels in re.findall(r"^(\w+)(\{.*?\})? \S+$", text, re.MULTILINE):
        name = series if series in found else re.sub(r"_(bucket|sum|count)$", "", series)
        if labels:
            found[name].append(f"  {series}{labels}")
    return [line for lines in found.values() for line in lines]


def network_metrics() -> str:
    """Return the metrics of a node in a network."""
    page = prometheus_text(frames.scene([]).nodes["n0"].node, uptime_s=1.0)
    return "\n".join(metrics(page)) + "\n"


def server_metrics() -> str:
    """Return the metrics of a server's page, which has more than those of its node."""

    async def page(data: Path) -> str:
        environ = {
            "NEARCAST_LOG__METRICS_PORT": "0",
            "NEARCAST_NODE__DATA": str(data),
            "NEARCAST_LISTENER": '[{"port": 0}]',
            "NEARCAST_HTTP__ADDRESS": "off",
        }
        server = Server(load(None, environ))
        await server.start()
        try:
            _, host, port = next(one for one in server.ports if one[0] == "http")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            text = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
        finally:
            await server.stop()
        return text

    with TemporaryDirectory() as data:
        text = asyncio.run(page(Path(data)))
    head, _, body = text.partition("\r\n\r\n")
    kind = re.search(r"Content-Type: (.*)\r", head)
    assert kind is not None
    return "\n".join([f"# {kind.group(1)}", *metrics(body)]) + "\n"


def counters() -> str:
    """Return the names of what a node counts, and why causal messages are discarded."""
    names = [one.name for one in dataclasses.fields(Counters)]
    reasons = [one.name.lower() for one in DiscardReason]
    return "\n".join([*names, *(f"causal_discarded{{reason={one}}}" for one in reasons)]) + "\n"


def _say_all(log: ClientLog) -> None:
    session, link = Session("ann", 1), Connection("127.0.0.1:1")
    link.version = 5
    log.connected(link, session, is_resumed=True)
    log.refused(link, Connect("ann"), ReasonCode.NOT_AUTHORIZED, "")
    log.gave_up(link, "why")
    log.disconnected(link, session, 0, "")
    log.lost(link, session, "")
    log.taken_over(link, session)
    log.publish_denied(session, "t")
    log.subscribe_denied(session, "t")
    log.selection_ignored(session, "t", "words")
    log.instructions_ignored(session, "t", "words")
    BrokerAcceptPolicy(Broker()).failed("127.0.0.1:1", ValueError("why"))


def log_events() -> str:
    """Return the fields that the log has about clients, as lines of JSON; words are left out."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("nearcast.clients")
    handler.emit = lambda record: lines.append(JsonLines().format(record))  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        _say_all(ClientLog())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    words = {"time": "", "message": "", "reason": ""}
    rows = [json.loads(line) for line in lines]
    return "".join(
        json.dumps({key: words.get(key, value) for key, value in row.items()}) + "\n"
        for row in rows
    )


FILES: dict[str, Maker] = {
    "figures/sys-topics.txt": topics,
    "figures/metrics-of-a-network.txt": network_metrics,
    "figures/counters.txt": counters,
    "figures/log-events.txt": log_events,
}
SERVER_FILES: dict[str, Maker] = {"figures/metrics.txt": server_metrics}
