"""Random histories of a `SocketSet` and its sockets; both ways of it must tell the same."""

from __future__ import annotations

import os
import socket
from random import Random
from typing import Any

_SIZES = (0, 1, 10, 1_000, 70_000, 300_000)


class SocketHistory:
    """A set of sockets with another end each, driven by a seed. `run` returns what happened."""

    def __init__(self, calls: Any, seed: int) -> None:
        self.random = Random(seed)
        self.calls = calls
        self.set = calls.SocketSet()
        self.number = 0
        self.ours: dict[str, socket.socket] = {}
        self.theirs: dict[str, socket.socket] = {}
        self.told: list[Any] = []
        self.door = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.door.setblocking(False)
        self.set.add_listener(self.door.fileno(), "door")
        self.callers: list[socket.socket] = []

    def run(self, steps: int) -> list[Any]:
        """Take so many steps; return all results and all that the other ends got."""
        actions = [self.add, self.send, self.send, self.gather, self.gather, self.watch]
        actions += [self.scatter, self.scatter, self.read, self.read, self.close_theirs]
        actions += [self.remove, self.mistake, self.close_under_it, self.knock]
        try:
            for _ in range(steps):
                self.random.choice(actions)()
            self.gather()
        finally:
            self.set.close()
            for one in [*self.ours.values(), *self.theirs.values(), *self.callers, self.door]:
                one.close()
        return self.told

    def _pick(self, among: dict[str, socket.socket]) -> str:
        return self.random.choice(sorted(among)) if among else ""

    def _bytes(self, most: int = 1 << 20) -> bytes:
        return self.random.randbytes(1) * min(most, self.random.choice(_SIZES))

    def add(self) -> None:
        name = f"socket {self.number}"
        self.number += 1
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 40_000)
        self.ours[name], self.theirs[name] = ours, theirs
        self.set.add(ours.fileno(), name)

    def send(self) -> None:
        """Let another end send something."""
        name = self._pick(self.theirs)
        if name:
            try:
                self.theirs[name].send(self._bytes())
            except OSError as problem:
                self.told.append(("sent", name, problem.errno))

    def read(self) -> None:
        """Let another end read something."""
        name = self._pick(self.theirs)
        if name:
            try:
                got = self.theirs[name].recv(self.random.choice([1, 5_000, 1 << 20]))
            except OSError as problem:
                self.told.append(("read", name, problem.errno))
            else:
                self.told.append(("read", name, got))

    def knock(self) -> None:
        """Connect some clients, fewer than the kernel lets wait."""
        waiting = 1 if self.random.random() < 0.9 else 40
        if len(self.callers) < 60:
            address = self.door.getsockname()
            self.callers += [socket.create_connection(address) for _ in range(waiting)]

    def _answer_door(self, what: Any) -> Any:
        """Close the connections that were accepted, and return their callers' places."""
        if not isinstance(what, list):
            return what
        names = [one.getsockname() for one in self.callers]
        for descriptor in what[::2]:
            os.close(descriptor)
        return [names.index(address) for address in what[1::2]]

    def gather(self) -> None:
        found = self.set.gather()
        pairs = list(zip(found[::2], found[1::2], strict=True))
        pairs = [(who, self._answer_door(what) if who == "door" else what) for who, what in pairs]
        self.told.append(("gathered", sorted(pairs, key=lambda pair: pair[0])))

    def watch(self) -> None:
        name = self._pick(self.ours)
        if name:
            reads, writes = self.random.random() < 0.7, self.random.random() < 0.5
            self.set.watch(self.ours[name].fileno(), reads, writes)

    def scatter(self) -> None:
        """Send to several sockets at once, one of them perhaps closed."""
        names = self.random.sample(sorted(self.ours), self.random.randrange(len(self.ours) + 1))
        outboxes = []
        for _ in names:
            count = self.random.choice([0, 1, 1, 2, 20, 1_500])
            most = 1 << 20 if count <= 2 else 5_000 if count <= 20 else 50
            outboxes.append([self._bytes(most) for _ in range(count)])
        descriptors = [self.ours[name].fileno() for name in names]
        self.told.append(("scattered", names, self.calls.scatter(descriptors, outboxes)))

    def close_theirs(self) -> None:
        name = self._pick(self.theirs)
        if name and self.random.random() < 0.3:
            if self.random.random() < 0.5:
                try:
                    self.theirs[name].shutdown(socket.SHUT_WR)
                except OSError as problem:
                    self.told.append(("shut", name, problem.errno))
            else:
                self.theirs.pop(name).close()

    def remove(self) -> None:
        name = self._pick(self.ours)
        if name and self.random.random() < 0.5:
            ours = self.ours.pop(name)
            self.set.remove(ours.fileno())
            ours.close()

    def close_under_it(self) -> None:
        """Close a socket before it is removed: its descriptor may be another's by then."""
        name = self._pick(self.ours)
        if name and self.random.random() < 0.3:
            ours = self.ours.pop(name)
            number = ours.fileno()
            ours.close()
            self.gather()
            self.set.remove(number)

    def mistake(self) -> None:
        """Call something as it must not be called; nothing may change."""
        name = self._pick(self.ours)
        known = self.ours[name].fileno() if name else 0
        unknown = os.dup(0)
        os.close(unknown)
        calls = [
            lambda: self.set.add(-1, "nobody"),
            lambda: self.set.add(unknown + 100_000, "nobody"),
            lambda: self.set.remove(unknown + 100_000),
            lambda: self.set.watch(unknown + 100_000, True, True),
            lambda: self.set.watch(-5, True, True),
            lambda: self.set.add(known, "again") if name else None,
            lambda: self.calls.scatter([known], []),
            lambda: self.calls.scatter([unknown + 100_000], [[b"x"]]),
        ]
        which = self.random.randrange(len(calls))
        try:
            self.told.append(("mistake", which, calls[which]()))
        except (ValueError, KeyError, TypeError, OSError) as problem:
            self.told.append(("mistake", which, type(problem).__name__))
