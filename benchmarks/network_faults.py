"""Real clients on a network under faults at random moments, checked message by message.

Five nodes; clients move, subscribe and publish (plain, shared, near, best of all, in causal order;
QoS 0, 1 and 2) while nodes are killed, hang, are cut off, leave and come back, NATS dies and hangs,
and the plan changes ten times. In the end: QoS 1 and 2, nothing that was acknowledged is lost;
QoS 0 and 2, nothing comes twice; causal order is kept; `$top` reached the best; what was retained
last, or deleted, is so at every node; and with `--audit` the nodes' own logs say so too.

    python -m benchmarks.network_faults --seconds 60 --seed 1 --directory /tmp/faults

The exit code is 1 if anything is wrong; `packets.txt` in the directory then has the last packets of
every client. `fault_people.py` has the clients and what they are owed, `fault_trouble.py` the
faults.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fault_people import Citizen, boards_at, find_wrong, find_wrong_boards
from benchmarks.fault_trouble import GUEST, NAMES, Trouble

from nearcast.cluster.distributed_top_k import PATIENCE_MS

PLANS = 10
PACE_S = 0.1
LEAST_HARM = 3
STANDSTILL_S = 1.0
"""Where this machine stood still for so long, nodes may have given each other up for a moment."""
CONTEST_S = PATIENCE_MS / 1000
SETTLE_S = 240.0
GREETING_S = 1.0
SHOWN = 20
UNDER_WAY_MS = 20_000
"""A message may be under way so long while NATS hangs; a crash then takes its trace along."""
FAULTS = ("lost", "doubled", "late", "misordered", "unasked")


def settle(people: list[Citizen]) -> bool:
    """Wait until everything is acknowledged, and nothing has come for three seconds."""
    deadline = time.monotonic() + SETTLE_S
    while any(one.unsettled for one in people):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    before = -1
    while (count := sum(one.got.total() for one in people)) != before:
        before = count
        time.sleep(3)
    return True


def populate(trouble: Trouble, rng: Random) -> list[Citizen]:
    """Return two citizens for each node, and one at the guest's that only publishes."""
    widths = rng.sample(range(5, 45), 2 * len(NAMES))
    people = [
        Citizen(
            f"{node}{number}", node, trouble.ports[node], widths.pop(), Random(rng.random())
        ).start()
        for node in NAMES
        for number in range(2)
    ]
    guest = Citizen(
        "guest", GUEST, trouble.ports[GUEST], 0, Random(rng.random()), listens=False
    ).start()
    wait_for(lambda: all(one.is_subscribed for one in people), "a subscription has no answer")
    introduce([*people, guest])
    return [*people, guest]


def introduce(people: list[Citizen]) -> None:
    """Wait until all have heard from all: each node then knows what is wanted at every other.

    A subscription is acknowledged without nodes that are away for long. On a busy machine a node
    may be so while it starts.
    """
    listeners = [one for one in people if one.listens]

    def have_met() -> bool:
        if all(one.has_heard(other) for one in listeners for other in people):
            return True
        for one in people:
            one.greet()
        return False

    wait_for(have_met, "some clients do not hear of each other", GREETING_S)


def wait_for(is_done: Callable[[], bool], complaint: str, pause_s: float = 0.05) -> None:
    """Wait until something is done; raise RuntimeError if it takes too long."""
    deadline = time.monotonic() + SETTLE_S
    while not is_done():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint)
        time.sleep(pause_s)


def live(trouble: Trouble, people: list[Citizen], seconds: float) -> bool:
    """Let everybody act while harm is done, and the plan changes ten times.

    Tell whether all nodes were linked in the end, and followed the last plan.
    """
    is_over = threading.Event()

    def act() -> None:
        last_s = time.time()
        while not is_over.wait(PACE_S):
            if time.time() - last_s > STANDSTILL_S:
                excuse(people, last_s - CONTEST_S)
            last_s = time.time()
            for one in people:
                one.act()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds or trouble.done.total() < LEAST_HARM:
            if trouble.plans < PLANS and passed >= trouble.plans * seconds / PLANS:
                trouble.change_plan()
            trouble.strike()
            time.sleep(0.5)
        while trouble.plans < PLANS:
            trouble.change_plan()
            trouble.wait_until_calm()
        is_calm = trouble.wait_until_calm()
        for one in people if is_calm else []:
            one.is_calm = True
        time.sleep(min(10.0, seconds / 4))
    finally:
        is_over.set()
        thread.join()
    return is_calm


def excuse(people: list[Citizen], since_s: float) -> None:
    """Ask of what was sent lately only that it reached the best of those nodes that were there."""
    for person in people:
        for one in person.sent.copy().values():  # another thread adds to it
            if one.sent_s >= since_s and "calm" in one.values:
                one.values["calm"] = False


def run(directory: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Return what was sent, done and wrong."""
    rng = Random(seed)
    trouble = Trouble(directory, rng)
    try:
        people = populate(trouble, rng)
        is_calm = live(trouble, people, seconds)
        is_settled = settle(people)
        shown = {name: boards_at(port) for name, port in trouble.ports.items()}
        for one in people:
            one.hangs = trouble.hangs[one.node]
            one.close()
    finally:
        trouble.close()
    wrong = [*find_wrong(people), *find_wrong_boards(people, shown)]
    if wrong:
        lines = sorted(line for one in people for line in one.packets)
        (directory / "packets.txt").write_text("\n".join(lines))
    sent = [one for person in people for one in person.sent.values()]
    return {
        "seed": seed,
        "sent": dict(Counter(f"{one.kind}, QoS {one.qos}" for one in sent)),
        "received": sum(one.got.total() for one in people),
        "harm": dict(trouble.done),
        "story": trouble.story,
        "plans": trouble.plans,
        "mended": is_calm,
        "unsettled": 0 if is_settled else sum(one.unsettled for one in people),
        "wrong": dict(Counter(one.what for one in wrong)),
        "examples": [str(one) for one in wrong[:SHOWN]],
    }


def audit(directory: Path) -> dict[str, int]:
    """Return what the nodes' logs say: as `nearcast pipeline audit` does, without Spark."""
    from nearcast.config import load
    from nearcast.pipeline.audit.cross_node_join import audit_here
    from nearcast.pipeline.audit.hops import Allowance

    case, found = audit_here(
        [str(directory / name / "eventlog") for name in (*NAMES, GUEST)],
        spaces=tuple(load(directory / "nearcast.toml", {}).space),
        allowance=Allowance(settle_ms=UNDER_WAY_MS),
    )
    kinds = Counter(one["kind"] for one in found)
    counted = sum(one.rows["events"] for one in case.nodes.values())
    return {"events": counted, **{kind: kinds[kind] for kind in FAULTS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", type=Path, help="Keep state and logs here.")
    parser.add_argument("--audit", action="store_true", help="Ask the nodes' logs too.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nearcast-faults-") as scratch:
        directory = arguments.directory or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        found = run(directory, arguments.seconds, arguments.seed)
        if arguments.audit:
            found["audit"] = audit(directory)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["wrong"] or found["unsettled"] or not found["mended"]))


if __name__ == "__main__":
    main()
