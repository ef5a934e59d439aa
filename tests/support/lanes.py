"""Which worker of a test run takes which file, and when.

A Spark session costs ten seconds of processor time until it is warm, and has compiled what the next
file needs as well. So the first half of the workers prefers the files whose tests share the session
of their worker, and the second half prefers all others, of which many wait for other processes. A
worker whose kind is used up takes what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler.loadfile import LoadFileScheduling  # type: ignore[import-untyped]

_ROOT = Path(__file__).parents[2]
_FIXTURE = re.compile(r"\bspark: SparkSession\b")


@cache
def shares_session(file: str) -> bool:
    """Return whether tests of a file use the fixture `spark`.

    >>> shares_session("tests/pipeline/test_plans.py"), shares_session("tests/broker/test_acks.py")
    (True, False)
    """
    path = _ROOT / file
    return path.suffix == ".py" and _FIXTURE.search(path.read_text(encoding="utf-8")) is not None


def next_file(files: Iterable[str], *, is_first_half: bool) -> str:
    """Return which of the files that are left a worker takes.

    >>> left = ["tests/broker/test_acks.py", "tests/pipeline/test_plans.py"]
    >>> next_file(left, is_first_half=True), next_file(left, is_first_half=False)
    ('tests/pipeline/test_plans.py', 'tests/broker/test_acks.py')
    >>> next_file(left[:1], is_first_half=True)
    'tests/broker/test_acks.py'
    """
    left = list(files)
    return next((one for one in left if shares_session(one) is is_first_half), left[0])


class Lanes(LoadFileScheduling):  # type: ignore[misc]
    """Gives each worker whole files, in the order in which they were collected."""

    def _assign_work_unit(self, node: Any) -> None:
        number = int(node.gateway.id.removeprefix("gw"))
        file = next_file(self.workqueue, is_first_half=number < self.numnodes // 2)
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)
