"""Sockets that wait for the event loop instead of the other way round: uvloop, and `calls.c`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import pytest
import uvloop
from tests.support.c_calls import compiled_calls, load_calls

from nearcast import compiling

uvloop_loop: Any = import_module("uvloop.loop")
LONG_S = 5.0


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if compiling.missing():
        pytest.skip(compiling.missing())
    return load_calls(compiled_calls(tmp_path_factory.mktemp("calls")))


class Waiting:
    """A set of one socket that waits for the event loop, and what came."""

    def __init__(self, calls: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.set = calls.SocketSet()
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.set.add(self.ours.fileno(), "owner")
        capsule = uvloop_loop.libuv_get_loop_t_ptr(self.loop)
        self.follows = self.set.follow(capsule, uvloop_loop.__file__, self.take)
        self.got = b""
        self.on_read: Callable[[], object] = lambda: None

    def take(self, found: list[Any]) -> None:
        for data in found[1::2]:
            self.got += data
            self.on_read()

    def send_later(self, data: bytes, after_s: float) -> None:
        threading.Timer(after_s, self.theirs.send, [data]).start()

    def close(self) -> None:
        if self.set.fileno() < 0:
            return
        self.set.close()
        self.ours.close()
        self.theirs.close()


def run(calls: Any, story: Callable[[Waiting], Awaitable[None]]) -> None:
    async def tell() -> None:
        waiting = Waiting(calls)
        try:
            async with asyncio.timeout(60):
                await story(waiting)
        finally:
            waiting.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(tell())


async def until(condition: Callable[[], bool], pause_s: float = 0.001) -> None:
    while not condition():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(pause_s)


def test_what_comes_later_is_read_while_the_event_loop_has_nothing_to_do(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        assert waiting.follows
        whole = asyncio.Event()
        waiting.on_read = lambda: whole.set() if len(waiting.got) == 5 else None
        for number in range(5):  # in threads, in any order
            waiting.send_later(b"x", number * 0.05)
        await whole.wait()

    run(in_c, story)


def test_timers_are_in_time_whether_set_before_or_meanwhile(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        times: list[float] = []
        started = time.monotonic()

        def note() -> None:
            times.append(time.monotonic() - started)

        waiting.loop.call_later(0.3, note)
        waiting.on_read = lambda: waiting.loop.call_later(0.1, note)
        waiting.theirs.send(b"x")
        await until(lambda: len(times) == 2, LONG_S / 20)
        assert 0.09 <= times[0] < 0.3 <= times[1] + 0.01
        assert times[1] < LONG_S

    run(in_c, story)


@pytest.mark.parametrize("what", ["soon", "thread", "reader", "task"])
def test_whatever_the_event_loop_has_to_do_is_done_at_once(in_c: Any, what: str) -> None:
    async def story(waiting: Waiting) -> None:
        done = asyncio.Event()
        other, its_end = socket.socketpair()

        def begin() -> None:
            if what == "soon":
                waiting.loop.call_soon(done.set)
            elif what == "reader":  # one that is added meanwhile, and is ready later
                waiting.loop.add_reader(other.fileno(), done.set)
                threading.Timer(0.1, its_end.send, [b"x"]).start()
            elif what == "task":
                waiting.loop.create_task(asyncio.to_thread(time.sleep, 0.1)).add_done_callback(
                    lambda _: done.set()
                )
            else:
                call = waiting.loop.call_soon_threadsafe
                threading.Timer(0.1, call, [done.set]).start()

        waiting.on_read = begin
        waiting.send_later(b"x", 0.05)
        started = time.monotonic()
        await done.wait()
        assert time.monotonic() - started < LONG_S / 2
        waiting.loop.remove_reader(other.fileno())
        other.close()
        its_end.close()

    run(in_c, story)


def test_a_stream_of_the_event_loop_that_is_full_is_written_on(in_c: Any) -> None:
    """Its wish to write is one that the kernel has not been told of when the wait begins."""

    async def story(waiting: Waiting) -> None:
        left, right = socket.socketpair()
        for one in (left, right):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        _, writer = await asyncio.open_connection(sock=left)
        sizes: list[int] = []

        def read() -> None:
            time.sleep(0.1)
            while sum(sizes) < 1_000_000:
                sizes.append(len(right.recv(1 << 20)))

        reader = threading.Thread(target=read)
        waiting.on_read = lambda: writer.write(b"x" * 1_000_000)
        waiting.theirs.send(b"x")
        reader.start()
        started = time.monotonic()
        await asyncio.to_thread(reader.join, 30)
        assert sum(sizes) == 1_000_000
        assert time.monotonic() - started < LONG_S
        writer.close()
        right.close()

    run(in_c, story)


def test_sockets_are_read_while_the_event_loop_is_busy(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        waiting.theirs.send(b"1")
        for number in range(200):
            waiting.theirs.send(b"x")
            await asyncio.sleep(0.001 * (number % 3))
        await until(lambda: len(waiting.got) == 201)

    run(in_c, story)


def test_a_set_that_is_closed_in_between_waits_no_more(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        waiting.on_read = waiting.close
        waiting.send_later(b"x", 0.05)
        await until(lambda: waiting.got == b"x")
        before = sys.getrefcount(waiting)
        await asyncio.sleep(0.05)  # the event loop is as it was before
        assert sys.getrefcount(waiting) <= before

    run(in_c, story)


def test_a_loop_that_has_nothing_to_do_sleeps(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        waiting.theirs.send(b"x")
        await asyncio.sleep(0.05)
        before = time.process_time()
        await asyncio.sleep(1.0)
        assert time.process_time() - before < 0.2
        assert waiting.got == b"x"

    run(in_c, story)


def test_a_mistake_of_the_taker_is_told_and_the_next_is_read(
    in_c: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: told.append(one.exc_type))

    async def story(waiting: Waiting) -> None:
        def fail() -> None:
            waiting.on_read = lambda: None
            raise ZeroDivisionError

        waiting.on_read = fail
        waiting.theirs.send(b"x")
        await until(lambda: bool(told))
        waiting.theirs.send(b"y")
        await until(lambda: waiting.got == b"xy")
        assert told == [ZeroDivisionError]

    run(in_c, story)


def test_a_set_may_be_closed_after_its_loop_has_stopped(in_c: Any) -> None:
    async def leave_it() -> None:
        made = in_c.SocketSet()
        capsule = uvloop_loop.libuv_get_loop_t_ptr(asyncio.get_running_loop())
        assert made.follow(capsule, uvloop_loop.__file__, print)
        kept.append(made)
        await asyncio.sleep(0.01)

    kept: list[Any] = []
    loop = uvloop.new_event_loop()
    loop.run_until_complete(leave_it())
    kept[0].close()
    loop.close()


def test_without_libuv_nothing_is_waited_for(in_c: Any) -> None:
    async def story(waiting: Waiting) -> None:
        other = in_c.SocketSet()
        capsule = uvloop_loop.libuv_get_loop_t_ptr(waiting.loop)
        assert not other.follow(capsule, os.devnull, print)
        with pytest.raises((TypeError, ValueError)):
            other.follow(object(), uvloop_loop.__file__, print)
        with pytest.raises(TypeError):
            waiting.set.follow(capsule, uvloop_loop.__file__, print)  # a second time
        other.close()

    run(in_c, story)
