"""The calls for many sockets: what each does, and that C and Python do the same."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tests.support.c_calls import compiled_calls, load_calls
from tests.support.socket_histories import SocketHistory

from nearcast import compiling
from nearcast.server.sockets import calls as loaded

WAYS = ["python", "c"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if compiling.missing():
        pytest.skip(compiling.missing())
    made = compiled_calls(tmp_path_factory.mktemp("calls"))
    return {"python": python_calls(), "c": load_calls(made)}


def python_calls() -> Any:
    """Return the Python module, also where the compiled one has its name."""
    if loaded.__file__.endswith(".py"):
        return loaded
    import runpy
    import types

    path = loaded.__spec__.origin
    assert path is not None
    from nearcast.compiled_core import PACKAGE

    names = runpy.run_path(str(PACKAGE / "server" / "sockets" / "calls.py"))
    return types.SimpleNamespace(**names)


@pytest.fixture(params=WAYS)
def calls(request: pytest.FixtureRequest, both: dict[str, Any]) -> Any:
    return both[request.param]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def watched(calls: Any) -> Iterator[Any]:
    made = calls.SocketSet()
    yield made
    made.close()


def test_what_is_ready_is_read_and_named_by_its_owner(watched: Any, pair: Any) -> None:
    ours, theirs = pair
    owner = object()
    watched.add(ours.fileno(), owner)
    assert watched.gather() == []
    theirs.send(b"hello")
    assert watched.gather() == [owner, b"hello"]
    assert watched.gather() == []
    theirs.shutdown(socket.SHUT_WR)
    assert watched.gather() == [owner, b""]


def test_a_paused_socket_is_not_read_and_room_to_write_is_told(watched: Any, pair: Any) -> None:
    ours, theirs = pair
    watched.add(ours.fileno(), "owner")
    theirs.send(b"x")
    watched.watch(ours.fileno(), False, False)
    assert watched.gather() == []
    watched.watch(ours.fileno(), False, True)
    assert watched.gather() == ["owner", None]
    watched.watch(ours.fileno(), True, True)
    assert watched.gather() == ["owner", None, "owner", b"x"]


def test_a_reset_is_told_by_its_number(watched: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with ours:
            ours.setblocking(False)
            ours.send(b"unread")
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            watched.add(ours.fileno(), "owner")
            theirs.close()
            assert watched.gather() == ["owner", errno.ECONNRESET]


def test_connections_are_accepted_some_at_a_time_and_do_not_block(watched: Any) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        watched.add_listener(server.fileno(), "door")
        assert watched.gather() == []
        clients = [socket.create_connection(server.getsockname()) for _ in range(20)]
        first, rest = watched.gather(), watched.gather()
        assert [first[0], rest[0], watched.gather()] == ["door", "door", []]
        assert [len(first[1]), len(rest[1])] == [32, 8]
        told = first[1] + rest[1]
        assert told[1::2] == [one.getsockname() for one in clients]
        for descriptor, client in zip(told[::2], clients, strict=True):
            assert not os.get_blocking(descriptor)
            assert not os.get_inheritable(descriptor)
            client.send(b"x")
            assert os.read(descriptor, 10) == b"x"
            os.close(descriptor)
            client.close()
        watched.remove(server.fileno())
        with socket.create_connection(server.getsockname()):
            assert watched.gather() == []


def test_an_address_of_ipv6_is_told_as_text(watched: Any) -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        server.setblocking(False)
        watched.add_listener(server.fileno(), "door")
        with socket.create_connection(server.getsockname()[:2]) as client:
            _, [descriptor, address] = watched.gather()
            assert address == client.getsockname()[:2]
            os.close(descriptor)


def test_a_socket_that_cannot_accept_tells_why_and_one_that_accepts_again_does(
    watched: Any,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        watched.add_listener(server.fileno(), "door")
        clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
        used = os.dup(0)
        os.close(used)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
            owner, told = watched.gather()  # the twin in Python needs a descriptor for itself
            found = [told] if isinstance(told, int) else told
            assert (owner, len(found) <= 2) == ("door", True)
            problems = [watched.gather()[1] for _ in range(2)]
            assert problems == [errno.EMFILE] * 2
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        rest = watched.gather()[1]
        assert len(rest) == (4 if isinstance(told, int) else 2)
        for one in [*found[::2], *rest[::2]]:
            if not isinstance(told, int) or one in rest:
                os.close(one)
        for client in clients:
            client.close()


def test_one_call_reads_a_mebibyte_and_leaves_the_rest_to_the_next(calls: Any) -> None:
    watched = calls.SocketSet()
    pairs = [socket.socketpair() for _ in range(30)]
    for number, (ours, theirs) in enumerate(pairs):
        for one in (ours, theirs):
            one.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.send(b"x" * 150_000)
        watched.add(ours.fileno(), number)
    first = watched.gather()
    assert 1 << 20 <= sum(map(len, first[1::2])) < (1 << 20) + 150_000
    rest = watched.gather() + watched.gather() + watched.gather() + watched.gather()
    got = dict.fromkeys(range(30), 0)
    for owner, data in zip(first[::2] + rest[::2], first[1::2] + rest[1::2], strict=True):
        got[owner] += len(data)
    assert set(got.values()) == {150_000}
    watched.close()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_scatter_sends_all_and_tells_what_is_left(calls: Any, pair: Any) -> None:
    ours, theirs = pair
    assert calls.scatter([ours.fileno()], [[b"a", b"", b"bc"]]) is None
    assert theirs.recv(100) == b"abc"
    assert calls.scatter([], []) is None
    assert calls.scatter([ours.fileno()], [[]]) is None
    big = [b"x" * 100_000] * 30
    place, sent = calls.scatter([ours.fileno()], [big])
    assert place == 0
    assert 0 < sent < 3_000_000
    assert calls.scatter([ours.fileno()], [[b"y"]]) == [0, 0]
    got = 0
    while got < sent:
        got += len(theirs.recv(1 << 20))
    theirs.close()
    assert calls.scatter([ours.fileno()] * 2, [[b"y"], []]) == [0, -errno.EPIPE]


def test_more_parts_than_one_call_of_the_kernel_takes(calls: Any, pair: Any) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    parts = [Random(one).randbytes(60) for one in range(2_500)]
    assert calls.scatter([ours.fileno()], [parts]) is None
    assert theirs.recv(1 << 20) == b"".join(parts)


@pytest.mark.parametrize("outbox", [["text"], [bytearray(b"x"), "text"], [b"x", None], (b"x", 3)])
def test_what_is_no_list_of_bytes_is_refused_before_anything_is_sent(
    calls: Any, pair: Any, outbox: Any
) -> None:
    ours, theirs = pair
    with pytest.raises(TypeError):
        calls.scatter([ours.fileno(), ours.fileno()], [[b"first"], outbox])
    with pytest.raises(BlockingIOError):
        theirs.recv(100)


def test_a_descriptor_that_another_connection_has_by_now_tells_nothing_of_the_first(
    watched: Any,
) -> None:
    first, other_end = socket.socketpair()
    second, its_end = socket.socketpair()
    kept = os.dup(first.fileno())  # so the kernel still watches what we close
    watched.add(first.fileno(), "first")
    number = first.fileno()
    first.close()
    watched.remove(number)
    moved = os.dup2(second.fileno(), number)
    os.set_blocking(moved, False)
    watched.add(moved, "second")
    other_end.send(b"for the first")
    assert watched.gather() == []
    its_end.send(b"for the second")
    assert watched.gather() == ["second", b"for the second"]
    os.close(kept)
    os.close(moved)
    for one in (second, its_end, other_end):
        one.close()


def test_owners_are_released(calls: Any, pair: Any) -> None:
    class Owner:
        pass

    ours, _theirs = pair
    owner = Owner()
    before = sys.getrefcount(owner)
    watched = calls.SocketSet()
    watched.add(ours.fileno(), owner)
    _theirs.send(b"x")
    assert watched.gather() == [owner, b"x"]
    watched.remove(ours.fileno())
    assert sys.getrefcount(owner) == before
    watched.add(ours.fileno(), owner)
    owner.watched = watched  # type: ignore[attr-defined]  # a circle
    watched.close()
    del watched, owner.watched  # type: ignore[attr-defined]
    gc.collect()
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_both_ways_tell_the_same_of_random_histories(both: dict[str, Any], first: int) -> None:
    for seed in range(first, first + 10):
        one, other = (SocketHistory(both[way], seed).run(120) for way in WAYS)
        assert one == other, f"seed {seed}"
    assert any(what == "gathered" and found for what, *found in one)
