"""A node in a cluster: connects to NATS, joins, transports frames, and works alone when it must.

Whatever happens to NATS, the node keeps serving its clients: links go down and come back.

Read next: `nats_members.py` (membership), `nats_frames.py` and `direct_links.py` (transport of
frames), `nearcast/nats/connection.py`, `member_entry.py` (what a node publishes about itself).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from nearcast.cluster.cluster import Cluster
from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem, KeyInUseError, NearcastError
from nearcast.nats.connection import NatsConnection, close, connect, first_to_end, public_address
from nearcast.server.cluster.direct_links import DirectLinks
from nearcast.server.cluster.link_runtime import LinkRuntime
from nearcast.server.cluster.nats_frames import FrameCarrier
from nearcast.server.cluster.nats_members import (
    EXPIRY_S,
    REFRESH_S,
    TAKEN_BACK,
    DepartedMember,
    LinkState,
    MemberRecord,
    Members,
    list_members,
    open_bucket,
)
from nearcast.server.cluster.nats_settings import SharedSettings
from nearcast.server.cluster.nats_sharing import make_scheduled_change
from nearcast.server.cluster.node_proofs import (
    MOST_PLACES,
    PLACES_ASKED,
    NodeProofs,
    request_subject,
)
from nearcast.server.feed.sender import FeedSender
from nearcast.server.learned.artefacts import LearnedArtefacts
from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

RETRY_S = 2.0
"""How long to wait before another attempt to join."""
DRAIN_S = 10.0
"""How long a node that leaves waits for its peers' acknowledgements."""
JOIN_S = 30.0
"""How long a starting node waits for the retained messages of its peers."""
_AGAIN_S = 0.05


class ClusterRuntime(LinkRuntime):
    """The cluster side of a server.

    `describe` returns this node's entry for the member list, with its metrics. `start` waits for
    the first attempt to join: a name that is taken is an error, anything else is retried later.
    Once it has joined, `start` also waits for the retained messages of the listed nodes.
    """

    def __init__(
        self,
        section: NetworkSection,
        mesh: Cluster,
        turns: LoopBatches,
        *,
        describe: Callable[[ClusterRuntime], MemberRecord],
        on_leave: Callable[[], None],
        learned: LearnedArtefacts,
    ) -> None:
        super().__init__(mesh, turns)
        self.feed: FeedSender | None = None  # None without `[network] feed`
        self._section = section
        self._describe = describe
        self._on_leave = on_leave
        self._learned = learned
        self._proofs = NodeProofs(section, mesh.name, turns.clock.now_ms, self._proven)
        self._carrier = FrameCarrier(
            section.name, mesh.name, received=self._brought, has_room=self._let_go_on
        )
        # direct connections to peers
        self.doors = DirectLinks(
            section.name,
            section.direct,
            mesh,
            turns,
            self._ask_key,
            self._received,
            self._proofs.sealed,
        )
        self._client: NatsConnection | None = None
        self._members: Members | None = None
        self._task: asyncio.Task[None] | None = None
        # result of the first attempt to join
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left: dict[str, int] = {}  # when a node left the cluster, in ms
        self._began: dict[str, int] = {}  # when a listed node started, in ms
        self._sharing: asyncio.Task[None] | None = None  # of the last plan that was proposed
        self._schedule_problem = ""  # why the last change of plan by the clock failed
        self._awaited: set[str] = set()  # peers that the journal has sessions of

    # --- start and stop ---------------------------------------------------------------------

    async def start(self) -> None:
        """Try to join; raise only if the name is taken or the direct port cannot be bound."""
        self._await_nodes_of_before()
        await self.doors.open()
        self._task = asyncio.create_task(self._keep_joined())
        self._tick()
        try:
            await self._first
        except KeyInUseError:
            await self.doors.close()
            raise
        await self._wait_for_retained()

    def _await_nodes_of_before(self) -> None:
        """List the nodes that the journal has sessions of as disconnected until they are met."""
        self._awaited = self.mesh.node.node_names()

    def drain(self) -> None:
        """Inform the peers that this node is about to end."""
        self.mesh.drain(self._turns.clock.now_ms())
        self._turns.schedule()

    async def stop(self, *, leave: bool) -> None:
        """Withdraw from the member list; with `leave`, for good, once peers acknowledged all."""
        if leave:
            self.mesh.leave(self._turns.clock.now_ms())
            self._turns.schedule()
            await self._wait_until_drained()
        self._turns.end()
        if self._client is not None and self._members is not None:
            await self._carrier.flush(self._client)
            await self._say_goodbye(self._members, leave=leave)
        await self.doors.close()
        self._end_ticks()
        if self._sharing is not None:
            self._sharing.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.feed is not None:
            self.feed.close()

    async def _wait_until_drained(self) -> None:
        for _ in range(int(DRAIN_S / 0.05)):
            if not self.mesh.has_unsettled():
                return
            await asyncio.sleep(0.05)
        log.warning("left while other nodes had not answered everything")

    async def _say_goodbye(self, members: Members, *, leave: bool) -> None:
        try:
            if leave:
                await members.mark_left(self.mesh.name, self._turns.clock.now_ms())
            await members.withdraw(self.mesh.name)
        except EnvironmentProblem as problem:
            log.warning("the other nodes were not told of the end: %s", problem)

    # --- staying joined ---------------------------------------------------------------------

    async def _keep_joined(self) -> None:
        while True:
            try:
                await self._join_once()
                self._tell("the connection to NATS is lost")
            except NearcastError as problem:
                if isinstance(problem, KeyInUseError) and not self._first.done():
                    self._first.set_exception(problem)
                    return
                self._tell(str(problem))
            except (NatsError, OSError) as problem:
                self._tell(f"the connection to NATS is lost ({problem})")
            except Exception:  # a bug must not keep the node out for ever
                log.exception("joining the network failed")
            if not self._first.done():
                self._first.set_result(None)
            await asyncio.sleep(RETRY_S)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            said = problem if problem.endswith((".", "?")) else f"{problem}."
            log.warning("not part of the network: %s Trying on.", said)
        self.problem = problem

    async def _join_once(self) -> None:
        """Connect, join, and stay until the connection is lost."""
        client = await connect(self._section, f"nearcast {self.mesh.name}")
        try:
            self.doors.local_host = client.local_host
            nodes = await open_bucket(client, self._section, expires=True)
            kept = await open_bucket(client, self._section, expires=False)
            members = Members(client, nodes, kept, self._proofs.entries)
            await members.unmark_left(self.mesh.name)
            await members.claim(self._describe(self))
            self._client, self._members = client, members
            await self._listen_to_requests(client)
            await first_to_end(
                self._carrier.run(client),
                self._watch(members),
                self._refresh(members),
                *self._learned.follow(SharedSettings(client, kept, self._section), self.mesh),
                *([] if self.feed is None else [self.feed.run(client)]),
                client.lost.wait(),
            )
        finally:
            self._client = self._members = None
            await close(client)

    async def _refresh(self, members: Members) -> None:
        self._joined()
        while True:
            try:
                await members.refresh(self._describe(self))
                if self.problem:
                    self._joined()
            except EnvironmentProblem as problem:
                if str(problem) != self.problem:
                    log.warning("other nodes may think this one away: %s", problem)
                self.problem = str(problem)
            self._proofs.prove(self._client, self.mesh.peers)
            self._tell_of_links()
            self._learned.use_plan()
            await self._make_scheduled_change()
            await asyncio.sleep(REFRESH_S)

    async def _make_scheduled_change(self) -> None:
        """Share the plan that the schedule has for this time, unless a peer has done so."""
        scheduled, client = self._learned.scheduled, self._client
        if scheduled is None or client is None:
            return
        try:
            now_ms = self._turns.clock.now_ms()
            offer = await make_scheduled_change(client, self._section, scheduled, now_ms)
        except KeyInUseError:
            return  # a peer was faster
        except NearcastError as problem:
            if str(problem) != self._schedule_problem:
                log.warning("a change of plan by the clock failed, trying on: %s", problem)
            self._schedule_problem = str(problem)
            return
        self._schedule_problem = ""
        if offer is not None:
            log.info("plan %d is shared: its time has come", offer.plan.version)

    def _joined(self) -> None:
        servers = ", ".join(public_address(one) for one in self._section.join)
        log.info("node %s joined network %s at %s", self.mesh.name, self._section.name, servers)
        self.problem = ""
        if not self._first.done():
            self._first.set_result(None)

    async def _wait_for_retained(self) -> None:
        """Wait until each listed node has sent its retained messages, at most `JOIN_S`.

        A node that was killed stays in the list until its entry expires.
        """
        began_s, seen = time.monotonic(), set[str]()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_S):
                while (client := self._client) is not None:
                    with contextlib.suppress(EnvironmentProblem):  # NATS is busy: ask again
                        listed = await self._listed(client)
                        seen |= listed
                        if not self.mesh.without_retained(listed):
                            break
                    await asyncio.sleep(_AGAIN_S)
        missing = self.mesh.without_retained(seen)
        if missing:
            log.warning(
                "ready after %.1f s without all retained messages: %s did not send all of them. "
                "What comes later is taken.",
                time.monotonic() - began_s,
                ", ".join(missing),
            )

    async def _listed(self, client: NatsConnection) -> set[str]:
        """Return the names of the peers in the member list, without those that have left."""
        return {
            one.name
            for one in await list_members(client, self._section, self._proofs.entries)
            if one.name != self.mesh.name and one.started_ms > self._left.get(one.name, -1)
        }

    async def _listen_to_requests(self, client: NatsConnection) -> None:
        async def asked(message: Msg) -> None:
            verb = message.data.partition(b" ")[0]
            if await self._proofs.answers(message) or not self._proofs.may_be_asked(message.data):
                return
            if verb == b"leave":
                await message.respond(b"leaving")
                told = {"event": "leave_asked"}
                log.info("asked to leave the network for good", extra={"fields": told})
                self._on_leave()
            elif verb == b"key":
                await message.respond(self.doors.key.encode())
            elif verb == PLACES_ASKED:
                places = self.mesh.client_places(MOST_PLACES)
                answer = self._proofs.answer_to(message.data, msgspec.json.encode(places))
                if answer is not None:
                    await message.respond(answer)

        subject = request_subject(self._section.name, self.mesh.name)
        await client.subscribe(subject, cb=asked)

    def _proven(self, name: str) -> None:
        """Greet a peer that has proven who it is."""
        if name in self.mesh.peers:
            self.mesh.neighbours.greet(name, self._turns.clock.now_ms())
            self._turns.schedule()

    async def _ask_key(self, name: str) -> str:
        """Return the key for direct connections to a node; NATS decides who may ask for it."""
        agreed = await self._proofs.direct_key(name)
        if agreed is not None:
            return agreed
        while self._client is not None:
            with contextlib.suppress(NoRespondersError):  # it has just joined, and will subscribe
                subject = request_subject(self._section.name, name)
                answer = await self._client.request(subject, b"key")
                return str(answer.data.decode())
            await asyncio.sleep(_AGAIN_S)
        raise EnvironmentProblem("no NATS to ask for the key")

    # --- membership -------------------------------------------------------------------------

    async def _watch(self, members: Members) -> None:
        """Follow the member list; restart the watch if it is silent.

        This node's own entry is written every second, so silence means that the watch is broken.
        """
        while True:
            changes = members.changes()
            try:
                while True:
                    async with asyncio.timeout(EXPIRY_S):
                        change = await anext(changes)
                    self._changed(change)
            except (EnvironmentProblem, TimeoutError, StopAsyncIteration):
                await asyncio.sleep(REFRESH_S)
            finally:
                await changes.aclose()

    def _changed(self, change: MemberRecord | DepartedMember) -> None:
        name, now_ms = change.name, self._turns.clock.now_ms()
        if name == self.mesh.name or not self._proofs.believes(change):
            return
        if isinstance(change, DepartedMember):
            self._left[name] = change.at_ms
            if change.at_ms != TAKEN_BACK and self._began.get(name, 0) <= change.at_ms:
                self._part(name, now_ms)
            return
        self._began[name] = change.started_ms
        self.doors.know(name, change.direct)
        if change.started_ms > self._left.get(name, -1) and name not in self.mesh.peers:
            log.info("node %s is at %s", name, ", ".join(change.addresses) or "no address yet")
            self.mesh.meet(name, now_ms)
            self._turns.schedule()
        self._proofs.prove(self._client, self.mesh.peers)

    def _part(self, name: str, now_ms: int) -> None:
        if name in self.mesh.peers:
            log.info("node %s has left for good", name)
        self.mesh.part(name, now_ms)
        self._told_of.pop(name, None)
        self._awaited.discard(name)
        self.doors.forget(name)
        self._turns.schedule()

    # --- links ------------------------------------------------------------------------------

    @property
    def frames_dropped(self) -> int:
        """Frames that were dropped because there was no connection to NATS."""
        return self._carrier.dropped

    def link_states(self) -> dict[str, LinkState]:
        """Return the state of the links to all peers, and the peers still awaited."""
        return {name: LinkState() for name in sorted(self._awaited)} | {
            name: LinkState(
                peer.link.is_up,
                round(peer.link.skew_ms, 1),
                None if peer.link.delay_ms == float("inf") else peer.link.delay_ms,
                peer.link.restarts,
                peer.problem,
                self.doors.is_direct(name),
            )
            for name, peer in self.mesh.peers.items()
        }

    # --- frames -----------------------------------------------------------------------------

    def _brought(self, sender: str, data: bytes) -> None:
        """Handle a frame from NATS, then direct frames that waited for it."""
        opened = self._proofs.open(sender, data)
        if opened is None:
            return
        self._received(sender, opened)
        self.doors.catch_up(sender)

    def turn_ended(self) -> None:
        """Send the batch's frames; its journal is written."""
        frames = self.doors.send(self.mesh.take_frames())
        frames = self._proofs.seal(frames)
        if frames:
            self._carrier.send(frames)
            if self._carrier.is_crowded:
                self._let_wait()
        self._look_at_order()

    def _let_wait(self) -> None:
        """Pause delivery to the peers reached over NATS, as to slow clients."""
        for name, peer in self.mesh.peers.items():
            if peer.connection is not None and not self.doors.is_direct(name):
                peer.connection.is_paused = True

    def _let_go_on(self) -> None:
        """Resume delivery to the peers reached over NATS."""
        for name, peer in self.mesh.peers.items():
            connection = peer.connection
            if connection is not None and connection.is_paused and not self.doors.is_direct(name):
                self._turns.resumed(connection)

    def _advanced(self) -> None:
        """Share the plan that this node proposes, if it does."""
        proposal = self.mesh.take_proposal()
        if proposal is not None:
            self._sharing = asyncio.create_task(self._learned.share_proposal(proposal))
