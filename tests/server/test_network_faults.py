"""A network of five nodes under faults at random moments, checked message by message.

Clients with lasting sessions move, subscribe and publish while nodes are killed, hang, are cut off,
leave and come back, NATS dies and hangs, and the plan changes ten times. A quarter of a minute by
default, ten minutes in a soak. `benchmarks/network_faults.py` does it; run it by hand to try other
seeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from benchmarks.fault_people import Citizen, Sent, Stay, find_wrong, find_wrong_boards
from hypothesis import settings

ROOT = Path(__file__).parents[2]
IS_SOAK = settings.default is not None and settings.default.max_examples > 50
SEED = int(time.time()) if IS_SOAK else 3
FAULTS_S = 600 if IS_SOAK else 15


def found(seconds: int, *options: str) -> dict[str, Any]:
    words = ["--seconds", str(seconds), "--seed", str(SEED), *options]
    command = [sys.executable, "-m", "benchmarks.network_faults", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.server
@pytest.mark.timeout(FAULTS_S + 1_500)
def test_nothing_is_lost_doubled_misplaced_or_out_of_order_and_the_nodes_logs_say_so_too(
    tmp_path: Path,
):
    told = found(FAULTS_S, "--audit", "--directory", str(tmp_path))  # to look at if it fails

    assert (told["wrong"], told["examples"], told["unsettled"]) == ({}, [], 0), told["story"]
    assert told["mended"]
    assert told["plans"] == 10
    assert sum(told["harm"].values()) >= 3
    assert told["audit"].pop("events") > (1_000 if IS_SOAK else 500)
    assert set(told["audit"].values()) == {0}, told["audit"]


# --- what finds the faults must find them --------------------------------------------------


class Village:
    """Three clients that never connect; what they sent and got is written down by hand."""

    def __init__(self) -> None:
        self.all = [
            Citizen(f"{node}0", node, 0, width, Random(1))
            for node, width in (("a", 10), ("b", 20), ("c", 30))
        ]

    def send(self, kind: str, qos: int, got: list[int], **values: Any) -> None:
        name = f"{kind}/a0/{len(self.all[0].sent)}"
        sent = Sent(name, kind, qos, 100.0, values, acked_s=100.1)
        self.all[0].sent[name] = sent
        for one, times in zip(self.all, got, strict=True):
            if times:
                one.got[name] = times
                one.order.append(name)

    def wrong(self) -> list[str]:
        return [one.what for one in find_wrong(self.all)]


@pytest.mark.parametrize(
    ("kind", "qos", "got", "expected"),
    [
        ("all", 0, [0, 1, 0], []),
        ("all", 0, [0, 2, 0], ["twice, QoS 0"]),
        ("all", 1, [1, 2, 5], []),
        ("all", 1, [1, 0, 1], ["lost, QoS 1"]),
        ("all", 2, [1, 1, 1], []),
        ("all", 2, [1, 2, 0], ["twice, QoS 2", "lost, QoS 2"]),
        ("jobs", 1, [0, 1, 0], []),
        ("jobs", 1, [1, 1, 0], []),
        ("jobs", 1, [0, 0, 0], ["lost, shared"]),
        ("jobs", 2, [1, 0, 1], ["twice, shared"]),
    ],
)
def test_what_is_lost_or_comes_twice_is_found(
    kind: str, qos: int, got: list[int], expected: list[str]
):
    village = Village()
    village.send(kind, qos, got)
    assert village.wrong() == expected


@pytest.mark.parametrize(
    ("stays", "got", "expected"),
    [
        ([(2, 50, 51)], 1, []),
        ([(2, 50, 51)], 0, ["lost, near, QoS 1"]),
        ([(3, 50, 51)], 1, ["from afar"]),
        ([(3, 50, 51)], 0, []),
        ([(2, 50, 51), (3, 100, 103)], 0, []),  # it was just leaving
        ([(2, 50, 51), (3, 100, 103)], 1, []),
        ([(2, 50, 51), (3, 98, 99)], 1, ["from afar"]),  # it had left
        ([(3, 50, 51), (2, 99, 101)], 0, []),  # it was just coming
        ([(3, 50, 51), (2, 98, 99)], 0, ["lost, near, QoS 1"]),
        ([(3, 50, 51), (2, 102, 103)], 1, ["from afar"]),
    ],
)
def test_a_message_in_the_wrong_place_is_found(
    stays: list[tuple[int, float, float]], got: int, expected: list[str]
):
    village = Village()
    village.all[1].stays = [Stay(*one) for one in stays]
    village.send("shops", 1, [0, got, 0], spot=2)
    assert village.wrong() == expected


def test_what_a_node_took_while_it_hung_may_count_as_of_just_before():
    village = Village()
    village.all[0].hangs = [(97.0, 100.2)]
    village.all[1].stays = [Stay(3, 50, 51), Stay(2, 98.0, 99.0)]
    village.send("shops", 1, [0, 0, 0], spot=2)
    assert village.wrong() == []

    village.all[0].hangs = [(80.0, 99.0)]  # over when it was sent
    assert village.wrong() == ["lost, near, QoS 1"]


@pytest.mark.parametrize(
    ("price", "is_calm", "got", "expected"),
    [
        (50, True, [1, 1, 0], []),
        (65, True, [0, 1, 1], []),
        (85, True, [0, 0, 0], []),
        (50, True, [1, 0, 1], ["not the best"]),
        (50, True, [1, 1, 1], ["not the best"]),
        (50, False, [1, 0, 1], []),  # the node of the second was away
        (50, False, [1, 1, 1], ["not the best of any nodes"]),
        (65, False, [1, 1, 0], ["not the best of any nodes"]),
    ],
)
def test_who_is_not_among_the_best_is_found(
    price: int, is_calm: bool, got: list[int], expected: list[str]
):
    village = Village()
    village.send("offers", 2, got, price=price, calm=is_calm)
    assert village.wrong() == expected


def test_an_answer_before_its_question_is_found():
    village = Village()
    village.send("talk", 1, [1, 1, 0])
    village.send("talk", 1, [1, 1, 1], answers="talk/a0/0")
    assert village.wrong() == []

    village.all[1].order.reverse()
    assert village.wrong() == ["before its question"]


@pytest.mark.parametrize(
    ("said", "seen", "expected"),
    [
        (b"board/a0/3", {"board/a0": b"board/a0/3"}, []),
        (b"board/a0/3", {"board/a0": b"board/a0/2"}, ["board: board/a0/3 at b shows board/a0/2"]),
        (b"board/a0/3", {}, ["board: board/a0/3 at b shows nothing"]),
        (b"", {}, []),
        (b"", {"board/a0": b"board/a0/2"}, ["board: a0's wiped one at b shows board/a0/2"]),
    ],
)
def test_a_board_that_does_not_show_the_last_word_is_found(
    said: bytes, seen: dict[str, bytes], expected: list[str]
):
    village = Village()
    village.all[0].board = said
    found = find_wrong_boards(village.all, {"a": {"board/a0": said} if said else {}, "b": seen})

    assert [str(one) for one in found] == expected
