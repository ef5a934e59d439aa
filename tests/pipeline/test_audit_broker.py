"""The audit of a real broker's log: killed in the middle, and with a client that does not read."""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.eventlog.log_files import find_segments
from nearcast.eventlog.segments import open_segments, read_segment
from nearcast.mqtt import Connect, FilterRequest, ProtocolVersion, Publish, Subscribe, encode_packet
from nearcast.pipeline.audit.hops import Allowance
from nearcast.pipeline.audit.logs import survey
from nearcast.pipeline.audit.segments import Case, audit_segment

pytestmark = pytest.mark.server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Return what starts a broker with a full event log."""
    made: list[BrokerProcess] = []
    (tmp_path / "data").mkdir()

    def begin(**sections: Any) -> BrokerProcess:
        defaults = {"durability": {}, "log": {"events": "full"}, "limits": {"connections": 100}}
        made.append(BrokerProcess(tmp_path / "data", **defaults | sections))
        return made[-1].start()

    yield begin
    for one in made:
        one.end(signal.SIGKILL)


def wait_until_written(root: Path, payload: bytes) -> None:
    wait_for(
        lambda: any(
            payload in body
            for path in open_segments(root / "eventlog")
            for _, body in read_segment(path)
        )
    )


def look(root: Path) -> tuple[Counter[str], Counter[str], dict[str, int]]:
    """Return faults by kind, what is unknown by why, and the rows of each table."""
    segments = find_segments([str(root / "eventlog")])
    facts = survey(segments)
    case = Case(tuple(segments), {segments[0].node: facts}, Allowance(), None, str(root))
    rows = [row for one in segments for row in audit_segment(case, one).to_dict("records")]
    kinds = Counter(str(row["kind"]) for row in rows if row["kind"] != "unknown")
    unknown = Counter(str(row["why"]) for row in rows if row["kind"] == "unknown")
    return kinds, unknown, dict(facts.rows)


def test_a_broker_that_is_killed_and_comes_back_has_no_fault_in_its_log(
    start: Callable[..., BrokerProcess],
) -> None:
    one = start(durability={"mode": "process"})
    lasting = BrokerAddress(
        port=one.port, client_id="bob", session_expiry_s=1_000, clean_start=False
    )
    with BlockingClient(lasting) as client:
        client.subscribe(FilterRequest("t/#", 1), FilterRequest("u", 0))
    for life in range(3):
        with BlockingClient(BrokerAddress(port=one.port, client_id="ann")) as client:
            client.publish(
                Publish(topic, b"%d/%d" % (life, n), n % 3)
                for n in range(60)
                for topic in ("t/x", "u", "nobody")
            )
        if life < 2:
            if life:  # the first time, its log's last records may or may not be on disk
                wait_until_written(one.directory, b"%d/59" % life)
            one.end(signal.SIGKILL)
            one.start()
            with BlockingClient(lasting) as client:
                client.wait_for_answer()  # by then what waited for it has come
                got = list(client.messages(timeout_s=1.0))
            assert got
    one.end(signal.SIGTERM)
    kinds, unknown, rows = look(one.directory)

    assert kinds == {}
    assert unknown == {}
    assert rows["events"] > 180
    assert rows["deliveries"] > 40


def test_what_a_client_does_not_read_is_dropped_and_not_lost(
    start: Callable[..., BrokerProcess],
) -> None:
    one = start(limits={"connections": 100, "queue": 50_000})
    with socket.create_connection(("127.0.0.1", one.port)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        lazy.sendall(encode_packet(Connect("lazy", ProtocolVersion.V311)))
        wish = Subscribe(1, (FilterRequest("t", 0),))
        lazy.sendall(encode_packet(wish, ProtocolVersion.V311))
        answers = b""
        while len(answers) < 9:  # CONNACK and SUBACK; from now on it reads nothing
            answers += lazy.recv(9 - len(answers))
        with BlockingClient(BrokerAddress(port=one.port, client_id="ann")) as client:
            for _ in range(40):
                client.publish(Publish("t", b"x" * 20_000, 0) for _ in range(20))
                time.sleep(0.01)
            client.publish([Publish("other", b"", 1)])
        one.end(signal.SIGTERM)
    kinds, unknown, rows = look(one.directory)

    assert kinds == {}
    assert unknown == {}
    assert rows["drops"] > 0
    assert rows["drops"] + rows["deliveries"] == 800
