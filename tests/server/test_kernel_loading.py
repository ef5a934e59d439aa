"""Compiled kernels are loaded while the event loop goes on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from nearcast import kernel_files, kernels
from nearcast.server.kernel_loading import KernelLoader

BEFORE_S = 0.004


class Slow:
    """Stands for a step that takes as long as the test wants."""

    def __init__(self) -> None:
        self.is_begun = threading.Event()
        self.may_end = threading.Event()
        self.problem: Exception | None = None
        self.switch_s = 0.0

    def __call__(self, *_given: Any) -> Path:
        self.switch_s = sys.getswitchinterval()
        self.is_begun.set()
        assert self.may_end.wait(60)
        if self.problem is not None:
            raise self.problem
        return Path("/nowhere/key")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Slow, Slow, list[str]]]:
    choose, load = Slow(), Slow()
    switched: list[str] = []
    monkeypatch.setattr(kernel_files, "choose", choose)
    monkeypatch.setattr(kernel_files, "is_warm", lambda *_: True)
    monkeypatch.setattr(kernels, "load", load)
    monkeypatch.setattr(kernels, "switch_on", lambda: switched.append("on"))
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(BEFORE_S)
    yield choose, load, switched
    sys.setswitchinterval(usual_s)
    for one in (choose, load):
        one.may_end.set()


async def test_the_event_loop_goes_on_while_kernels_are_found_and_loaded(steps: Any):
    choose, load, switched = steps
    task = asyncio.create_task(KernelLoader(["matching"], Path("/data")).run())
    for slow in (choose, load):
        await until(slow.is_begun.is_set)  # this loop turns meanwhile
        assert not switched
        slow.may_end.set()
    assert await task
    assert switched == ["on"]


async def test_the_loading_thread_is_interrupted_often_and_no_longer_than_it_loads(steps: Any):
    choose, load, _ = steps
    for one in (choose, load):
        one.may_end.set()
    assert await KernelLoader(["matching"], Path("/data")).run()
    assert load.switch_s < BEFORE_S / 4
    assert sys.getswitchinterval() == pytest.approx(BEFORE_S)


async def test_a_problem_is_raised_where_kernels_are_awaited(steps: Any):
    choose, load, switched = steps
    choose.may_end.set()
    load.problem = MemoryError("kernels")
    load.may_end.set()
    with pytest.raises(MemoryError, match="kernels"):
        await KernelLoader(["matching"], Path("/data")).run()
    assert not switched
    assert sys.getswitchinterval() == pytest.approx(BEFORE_S)


async def test_whoever_stops_waiting_is_not_answered_later(steps: Any):
    choose, _, switched = steps
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: told.append(found))
    task = asyncio.create_task(KernelLoader(["matching"], Path("/data")).run())
    await until(choose.is_begun.is_set)
    task.cancel()
    choose.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: all(one.name != "kernels" for one in threading.enumerate()))
    await asyncio.sleep(0)
    assert not told
    assert not switched
