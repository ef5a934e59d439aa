"""A deterministic discrete-event world: a virtual clock, actors, and the network between them.

Rule 1: nothing here reads a real clock or an unseeded random source.
Rule 2: entries for the same instant run in the order in which they were scheduled.
Rule 3: the world decides *when* an actor is called; the actor alone decides what it does.

An actor is any core without input or output. It returns outputs: a `Send` goes into the network
(`network.py`), any other output (for example a delivery to a client) to the world's observer.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from nearcast.model.errors import KeyInUseError, KeyMissingError, MisuseError, OutOfRangeError
from nearcast.simulator.network import ActorId, Instant, SimulatedLink, SimulatedNetwork

__all__ = ["Actor", "ActorId", "DropObserver", "Instant", "Observer", "Send", "World"]


class Send(NamedTuple):
    """An actor's request to send `message` to the actor `to`.

    Messages are immutable values; a message whose receiver needs the sender contains it.
    """

    to: ActorId
    message: Any


class Actor(Protocol):
    """A core in the world. `now` never decreases from one call to the next.

    After `advance(now)`, `wake_at()` must be later than `now` or None.
    """

    def receive(self, message: Any, now: Instant, /) -> Iterable[Any]:
        """Handle one message; return the outputs."""
        ...

    def advance(self, now: Instant, /) -> Iterable[Any]:
        """Do everything that is due by `now`; return the outputs."""
        ...

    def wake_at(self) -> Instant | None:
        """Return when `advance` must be called; None if only a message can change anything."""
        ...


Observer: TypeAlias = Callable[[Instant, ActorId, Any], None]
"""Sees each output that is not a `Send`: (now, actor, output)."""

DropObserver: TypeAlias = Callable[[Instant, ActorId, ActorId, Any], None]
"""Sees each message that is lost, cut off or has no receiver: (now, sender, receiver, message)."""

A = TypeVar("A", bound=Actor)
_DIGEST_BATCH = 512
_MESSAGE, _POST, _WAKE, _ACTION = range(4)


class World:
    """Virtual time, actors, and the network between them, all from one seed.

    Contract:
        - the same seed, actors and calls give the same run: the same calls of the actors with the
          same arguments in the same order, in any process on any machine, as long as the actors
          are deterministic (no iteration over sets of strings);
        - a message to an actor that is down when it arrives is dropped; one that arrives after the
          restart is delivered, however old it is;
        - a crash takes down the actor alone: the caller of `restart` decides what it still knows.

    Complexity: O(log q) per message, wake or action, for q of them scheduled.

    With `keep_digest=False` the run is faster by the cost of one `repr` per message.

    >>> class Echo:
    ...     def __init__(self): self.seen = []
    ...     def receive(self, message, now):
    ...         self.seen.append((now, message))
    ...         return [Send("a", message + 1)] if message < 3 else []
    ...     def advance(self, now): return []
    ...     def wake_at(self): return None
    >>> world = World(seed=7)
    >>> actors = {name: world.add(name, Echo()) for name in ("a", "b")}
    >>> world.post("b", 1)
    >>> world.run()
    3
    >>> actors["a"].seen, world.now
    ([(1, 2), (1, 3)], 1)
    """

    def __init__(
        self,
        seed: int,
        *,
        link: SimulatedLink | None = None,
        observer: Observer | None = None,
        drop_observer: DropObserver | None = None,
        keep_digest: bool = True,
    ) -> None:
        self.seed = seed
        self.now: Instant = 0
        self.network = SimulatedNetwork(link)
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()  # sent, delivered, dropped, crashes
        self._observer = observer
        self._drop_observer = drop_observer
        self._actors: dict[ActorId, Actor] = {}  # up
        self._down: dict[ActorId, Actor] = {}  # crashed
        self._wakes: dict[ActorId, Instant] = {}  # the valid wake of each actor
        # (instant, order, kind, actor or action, sender, message); order is unique, so that
        # comparing two entries never reaches the fields after it.
        self._queue: list[tuple[Instant, int, int, Any, Any, Any]] = []
        self._order = 0
        self._hash = hashlib.blake2b(digest_size=16) if keep_digest else None
        self._unhashed: list[str] = []

    # --- actors -----------------------------------------------------------------------------

    def add(self, actor_id: ActorId, actor: A) -> A:
        """Add an actor to the world and return it."""
        if actor_id in self._actors or actor_id in self._down:
            raise KeyInUseError(repr(actor_id), where="World.add", expected="a new actor id")
        self._actors[actor_id] = actor
        self._schedule_wake(actor_id, actor)
        return actor

    def actor(self, actor_id: ActorId) -> Actor:
        """Return an actor that is up."""
        try:
            return self._actors[actor_id]
        except KeyError:
            raise self._no_such(actor_id, "World.actor") from None

    def alive(self, actor_id: ActorId) -> bool:
        """Return whether an actor is up."""
        return actor_id in self._actors

    def crash(self, actor_id: ActorId) -> Actor:
        """Take an actor down and return it; messages to it are dropped until `restart`."""
        if actor_id not in self._actors:
            raise self._no_such(actor_id, "World.crash")
        actor = self._actors.pop(actor_id)
        self._down[actor_id] = actor
        self._wakes.pop(actor_id, None)
        self.counts["crashes"] += 1
        return actor

    def restart(self, actor_id: ActorId, actor: Actor | None = None) -> None:
        """Bring a crashed actor back: as `actor`, or, when None, with its old state."""
        if actor_id not in self._down:
            raise self._no_such(actor_id, "World.restart")
        before = self._down.pop(actor_id)
        self._actors[actor_id] = before if actor is None else actor
        self._schedule_wake(actor_id, self._actors[actor_id])

    def remove(self, actor_id: ActorId) -> None:
        """Remove an actor, up or down; its id may be used again."""
        if self._actors.pop(actor_id, None) is None and self._down.pop(actor_id, None) is None:
            raise self._no_such(actor_id, "World.remove")
        self._wakes.pop(actor_id, None)

    def random_for(self, name: ActorId) -> Random:
        """Return a random source for `name`: it depends on the seed and the name only."""
        return Random(f"{self.seed}/{name}")

    # --- input from outside -------------------------------------------------------------------

    def post(self, to: ActorId, message: Any, *, at: Instant | None = None) -> None:
        """Schedule a message to an actor at an instant (now, when None), bypassing the network."""
        self._push(self._not_past(at, "World.post"), _POST, to, to, message)

    def call_at(self, at: Instant, action: Callable[[], object]) -> None:
        """Schedule an action at an instant: a fault, a joining actor, a step of an experiment."""
        self._push(self._not_past(at, "World.call_at"), _ACTION, action, None, None)

    def perform(self, actor_id: ActorId, outputs: Iterable[Any]) -> None:
        """Process the outputs of an actor that was called from outside the loop."""
        if actor_id not in self._actors:
            raise self._no_such(actor_id, "World.perform")
        self._carry_out(actor_id, outputs)
        self._schedule_wake(actor_id, self._actors[actor_id])

    # --- the loop ------------------------------------------------------------------------------

    def run(self, until: Instant | None = None, *, most_steps: int | None = None) -> int:
        """Run until nothing is scheduled, or past the instant `until`; return the number of steps.

        With `until`, everything at that instant still happens, and the clock ends there.
        """
        steps = 0
        queue = self._queue
        while queue and (until is None or queue[0][0] <= until):
            if most_steps is not None and steps >= most_steps:
                return steps
            steps += self._step(heappop(queue))
        if until is not None and until > self.now:
            self.now = until
        return steps

    def digest(self) -> str:
        """Return the hash of every delivery and wake so far, in order."""
        if self._hash is None:
            raise MisuseError(
                "World(keep_digest=False)", where="World.digest", expected="a world that keeps one"
            )
        self._flush()
        return self._hash.hexdigest()

    def _step(self, entry: tuple[Instant, int, int, Any, Any, Any]) -> int:
        at, _, kind, target, sender, message = entry
        if kind == _ACTION:
            self.now = at
            target()
            return 1
        actor = self._actors.get(target)
        if kind == _WAKE:
            if actor is None or self._wakes.get(target) != at:
                return 0  # rescheduled since, or the actor is gone
            del self._wakes[target]
            self.now = at
            self._note(at, target, "wake")
            self._carry_out(target, actor.advance(at))
            self._check_advanced(target, actor)
        else:
            self.now = at
            if actor is None or not (kind == _POST or self.network.connected(sender, target)):
                self._dropped(sender, target, message)
                return 0
            self.counts["delivered"] += 1
            self._note(at, target, message)
            self._carry_out(target, actor.receive(message, at))
        self._schedule_wake(target, actor)
        return 1

    def _carry_out(self, actor_id: ActorId, outputs: Iterable[Any]) -> None:
        now = self.now
        for output in outputs:
            if type(output) is Send:
                self.counts["sent"] += 1
                to, message = output
                arrivals = self.network.arrivals(actor_id, to, now, self.random)
                if not arrivals:
                    self._dropped(actor_id, to, message)
                for at in arrivals:
                    self._push(at, _MESSAGE, to, actor_id, message)
            elif self._observer is not None:
                self._observer(now, actor_id, output)

    def _dropped(self, sender: ActorId, to: ActorId, message: Any) -> None:
        self.counts["dropped"] += 1
        if self._drop_observer is not None:
            self._drop_observer(self.now, sender, to, message)

    def _push(self, at: Instant, kind: int, target: Any, sender: Any, message: Any) -> None:
        self._order += 1
        heappush(self._queue, (at, self._order, kind, target, sender, message))

    def _schedule_wake(self, actor_id: ActorId, actor: Actor) -> None:
        wanted = actor.wake_at()
        if wanted is None:
            self._wakes.pop(actor_id, None)
            return
        at = max(wanted, self.now)
        if self._wakes.get(actor_id) != at and self._actors.get(actor_id) is actor:
            self._wakes[actor_id] = at
            self._push(at, _WAKE, actor_id, None, None)

    def _check_advanced(self, actor_id: ActorId, actor: Actor) -> None:
        wanted = actor.wake_at()
        if wanted is not None and wanted <= self.now:
            raise MisuseError(
                f"actor {actor_id!r} wants waking at {wanted} after advance({self.now})",
                where="World.run",
                expected="an instant later than now, or None",
                todo="Its wake_at() never moves on, so the clock would stand still for ever",
            )

    def _note(self, at: Instant, actor_id: ActorId, message: Any) -> None:
        if self._hash is not None:
            self._unhashed.append(f"{at}|{actor_id!r}|{message!r}\n")
            if len(self._unhashed) >= _DIGEST_BATCH:
                self._flush()

    def _flush(self) -> None:
        if self._hash is not None:
            self._hash.update("".join(self._unhashed).encode("utf-8", "surrogatepass"))
        self._unhashed.clear()

    def _not_past(self, at: Instant | None, where: str) -> Instant:
        if at is None:
            return self.now
        if at < self.now:
            raise OutOfRangeError(
                repr(at), where=where, expected=f"an instant from {self.now}, which is now"
            )
        return at

    def _no_such(self, actor_id: ActorId, where: str) -> KeyMissingError:
        state = (
            "down" if actor_id in self._down else "up" if actor_id in self._actors else "unknown"
        )
        return KeyMissingError(f"actor {actor_id!r} is {state}", where=where)
