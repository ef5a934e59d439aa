"""Clients that connect to a node other than the one with their session: their bytes are relayed.

    client ──TCP── entry node ══ tunnel: bytes over the link ══ session node: queue, protocol

The node that a client connects to (the entry node) sends a claim to all peers. If no peer has the
client's session, the entry node creates one. If a peer has it, the entry node opens a tunnel to
that peer, the session node, which serves the client as if it had connected there, including
takeover from an older connection anywhere [MQTT-3.1.4-3]. A client with clean start ends its
sessions at all peers and gets a new one at the entry node [MQTT-3.1.2-4].

A tunnel ends with its link; to both sides that is a lost connection. A client that its session node
has redirected to the entry node gets no tunnel: its session moves (`session_moves.py`).

A client that is served here takes its causal past along: the answers to the claim carry it, and the
CONNACK waits until it is delivered here (paper 2, trap T2.8; `causal_groups.py`).

In the code `home` is the session node. Read next: `nearcast/broker/session/connection.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from struct import Struct

import msgspec

from nearcast.broker import Broker, Connection
from nearcast.broker.session.connection import ForwardedIdentity
from nearcast.broker.session.identity import is_owner
from nearcast.broker.session.tunnels import TunnelKey, WayBack, WayOut, decode_connect
from nearcast.cluster.causal_groups import CausalGroups, Past
from nearcast.cluster.messages import (
    ClaimSession,
    FetchedSession,
    FetchSession,
    SessionClaimed,
    TunnelClosed,
    TunnelOpened,
    TunnelPaused,
)
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import TUNNELS, PeerRegistry
from nearcast.cluster.session_moves import SessionMoves
from nearcast.mqtt import Connect, encode_packet

PATIENCE_MS = 3_000
"""How long a client waits for a peer that has just been lost: that peer may have its session."""
MOST_PATIENCE_MS = 5_000
"""How long a client waits in total; a peer that has not answered by then is asked later."""
NOT_HERE, COMES_HERE, FOREIGN = -1, -2, -3
"""In `SessionClaimed.last_ms`: no session; connecting here right now; a session of another user."""
TUNNEL_HEAD = Struct("<Q?")
"""Precedes the bytes of a client: the number of the tunnel; to its session, or from it."""
_MOST_UNREAD_BYTES = 1 << 18


@dataclass(slots=True)
class PendingClaim:
    """A client that waits for the answers of the peers, or for its causal past."""

    connection: Connection
    connect: Connect
    waits_for: set[str]
    """The peers that have not answered."""
    until_ms: int
    """When the claim is decided without what is missing."""
    homes: dict[str, int] = field(default_factory=dict)
    """The peers that have a session of the client, and when it last connected there."""
    may_move: set[str] = field(default_factory=set)
    """Those of them that have redirected the client to this node."""
    fetched_from: str | None = None
    """The peer that was asked to send the session; None: not so far."""
    pasts: list[tuple[str, Past]] = field(default_factory=list)
    """What peers sent of the client's causal past, each with the name of the peer."""
    is_foreign: bool = False
    """Whether a peer has a session of another user under the client's identifier."""
    is_adopting: bool = False
    """Whether the client waits for its causal past."""

    @property
    def home(self) -> str | None:
        """The peer with the session that was used last."""
        return max(self.homes, key=lambda name: (self.homes[name], name), default=None)


class SessionRelay(ClusterPart):
    """Finds the session nodes of clients, and relays the bytes of clients connected elsewhere.

    Contract: while all links are up, a client has one session in the cluster. During a partition it
    may get two; the one used last survives.

    Complexity: O(nodes) for a client without a session here, O(1) for anything else.
    """

    def __init__(
        self,
        name: str,
        node: Broker,
        peers: PeerRegistry,
        moves: SessionMoves,
        causal: CausalGroups,
    ) -> None:
        self._moves = moves
        self._causal = causal
        self._name = name
        self._node = node
        self._peers = peers
        self._tell = peers.tell_named
        self._number = 0
        self._asking: dict[int, PendingClaim] = {}  # claims without all answers, by number
        self._ways_out: dict[TunnelKey, Connection] = {}  # this node is the entry node
        self._ways_in: dict[TunnelKey, Connection] = {}  # this node is the session node
        self._unread: set[TunnelKey] = set()  # tunnels paused because the client does not read
        self._unasked: dict[str, set[str]] = {}  # by client: peers that could not be asked
        self._lost_ms: dict[str, int] = {}  # when a peer was lost
        self._left_ms: dict[str, int] = {}  # when a peer left the cluster

    @property
    def now_ms(self) -> int:
        """The current time: of the frame being handled, or of the broker's call."""
        return max(self._peers.now_ms, self._node.now_ms)

    @property
    def relayed(self) -> int:
        """How many clients connected here have their session at another node."""
        return len(self._ways_out)

    # --- claims -----------------------------------------------------------------------------

    def claim(self, connection: Connection, connect: Connect) -> bool:
        """Ask connected peers for a client's session; return False if there is none to wait for.

        A claim also waits for peers lost a moment ago, except with clean start.
        """
        present = [peer.name for peer in self._peers.present]
        away = [name for name, peer in self._peers.peers.items() if peer.connection is None]
        soon = [name for name in away if not (connect.clean_start or self.is_lost(name))]
        gone = set(away).difference(soon)
        if gone:
            self._unasked[connect.client_id] = gone
        if not (present or soon):
            return False
        self._number += 1
        until_ms = self.now_ms + MOST_PATIENCE_MS
        self._asking[self._number] = PendingClaim(connection, connect, {*present, *soon}, until_ms)
        for name in present:
            self._ask(name, self._number, connection, connect)
        return True

    def is_home(self, _identifier: str) -> bool:
        """Return whether a new session may be here: any session may be at any node."""
        return True

    def is_lost(self, name: str) -> bool:
        """Return whether a peer has been away too long to wait for."""
        return self.now_ms >= self._lost_ms.get(name, -PATIENCE_MS) + PATIENCE_MS

    def given_up_at(self, names: Collection[str]) -> int | None:
        """Return when the next of these peers counts as lost; None if all are connected."""
        away = [name for name in names if name in self._lost_ms and not self.is_lost(name)]
        return min((self._lost_ms[name] + PATIENCE_MS for name in away), default=None)

    def _ask(self, peer: str, number: int, connection: Connection, connect: Connect) -> None:
        claim = ClaimSession(number, connect.client_id, connect.clean_start)
        self._tell(peer, msgspec.structs.replace(claim, owner=connection.user_name))

    @handles(ClaimSession)
    def asked(self, peer: PeerNode, message: ClaimSession) -> None:
        """Answer a peer's claim: whether this node has the client's session.

        If the client connects to both nodes at once, the node with the greater name keeps it.
        """
        last_ms, client_id = NOT_HERE, message.client_id
        if not self._is_owner(message):
            if message.number:
                self._peers.tell(peer, SessionClaimed(message.number, FOREIGN))
            return
        rival = self._rival(client_id)
        if rival is not None and self._name > peer.name:
            last_ms = COMES_HERE
        else:
            if rival is not None:
                self._node.close(self._asking.pop(rival).connection)
            last_ms = self._answer(peer.name, message)
        if message.number:
            may_move = last_ms >= 0 and self._moves.may_move(client_id, peer.name)
            is_served_there = message.number > 0 and (last_ms == NOT_HERE or may_move)
            pasts = self._causal.pasts_of(client_id, peer) if is_served_there else []
            self._peers.tell(peer, SessionClaimed(message.number, last_ms, may_move, pasts))

    def _is_owner(self, claim: ClaimSession) -> bool:
        """Return whether the session here, if any, is that of the user who claims it."""
        session = self._node.session_of(claim.client_id)
        return session is None or claim.owner == "" or is_owner(session, claim.owner)

    def _rival(self, client_id: str) -> int | None:
        """Return the number of a pending claim of this node for the same client."""
        claims = self._asking.items()
        return next((n for n, one in claims if one.connect.client_id == client_id), None)

    def _answer(self, peer: str, message: ClaimSession) -> int:
        last_ms = self._last_seen(message.client_id)
        if not message.clean or last_ms == NOT_HERE:
            return last_ms
        if (last_ms, self._name) > (message.last_ms, peer):  # ours is newer
            self._end_at(peer, message.client_id, last_ms)
            return last_ms
        self._moves.end_session(peer, message, self.now_ms)
        return NOT_HERE

    def _last_seen(self, client_id: str) -> int:
        """Return when a client with a session here last connected, or left if that is not known."""
        session = self._node.session_of(client_id)
        if session is None:
            return NOT_HERE
        return session.came_ms or max(0, session.ends_at_ms - session.expiry_s * 1000)

    @handles(SessionClaimed)
    def answered(self, peer: PeerNode, message: SessionClaimed) -> None:
        """Handle a peer's answer to a claim of this node."""
        asking = self._asking.get(message.number)
        if self._moves.answered(message.number) or asking is None:
            return
        asking.waits_for.discard(peer.name)
        asking.pasts += [(peer.name, one) for one in message.pasts]
        if message.last_ms == COMES_HERE:
            self._node.close(self._asking.pop(message.number).connection)
        else:
            asking.is_foreign |= message.last_ms == FOREIGN
            if message.last_ms >= 0:
                asking.homes[peer.name] = message.last_ms
                if message.may_move:
                    asking.may_move.add(peer.name)
            self._go_on(message.number, asking)

    def _go_on(self, number: int, asking: PendingClaim) -> None:
        if asking.waits_for:
            return
        home = asking.home
        if home is None and asking.is_foreign:
            del self._asking[number]
            self._node.refuse_other(asking.connection, self.now_ms)
            return
        owner = asking.connection.user_name
        for name in asking.homes:
            if name != home:
                self._tell(name, ClaimSession(0, asking.connect.client_id, True, owner=owner))
        if home is not None and home not in asking.may_move:
            del self._asking[number]
            self._open(home, number, asking)
            return
        asking.is_adopting, asking.until_ms = True, self.now_ms + self._causal.memory_ms + 1
        pasts, asking.pasts = asking.pasts, []
        self._causal.adopt(pasts, lambda: self._serve(number), self.now_ms)

    def _serve(self, number: int) -> None:
        """Continue with a client that is served here, now that its causal past is known."""
        asking = self._asking.get(number)
        if asking is None or not asking.is_adopting:
            return  # it has gone, or the peer that has its session was lost meanwhile
        asking.is_adopting, home = False, asking.home
        if home is None:
            del self._asking[number]
            self._node.found_home(asking.connection, None, self.now_ms)
        else:
            asking.fetched_from, asking.until_ms = home, self.now_ms + MOST_PATIENCE_MS
            self._tell(home, FetchSession(number, asking.connect.client_id))

    @handles(FetchedSession)
    def fetched(self, peer: PeerNode, message: FetchedSession) -> None:
        """Continue with a client whose session has moved here; if it has not, through a tunnel."""
        asking = self._asking.get(message.number)
        if asking is None or asking.fetched_from != peer.name:
            return
        del self._asking[message.number]
        connection = asking.connection
        if not connection.is_open or connection.is_closing:
            return  # the session stays where it is
        last_ms = asking.homes[peer.name]
        self._node.keep_login_rules(connection, asking.connect.client_id)
        if message.records and self._moves.adopt(peer.name, message, last_ms, self.now_ms):
            self._node.found_home(connection, None, self.now_ms)
        else:
            self._open(peer.name, message.number, asking)

    # --- tunnels, at the entry node ---------------------------------------------------------

    def _open(self, home: str, number: int, asking: PendingClaim) -> None:
        connection, connect = asking.connection, asking.connect
        user_name = connection.user_name
        packet = encode_packet(replace(connect, password=None))
        rules = self._node.login_rules(connection)
        self._tell(home, TunnelOpened(number, packet, user_name, connection.address, rules))
        self._ways_out[home, number] = connection
        self._node.found_home(connection, WayOut(self, (home, number)), self.now_ms)

    def say(self, key: TunnelKey, data: bytes) -> None:
        """Send bytes of a client to its session node."""
        peer, number = key
        self._peers.send_named(peer, TUNNELS, TUNNEL_HEAD.pack(number, True) + data)

    def gone(self, key: TunnelKey) -> None:
        """Send TunnelClosed to the session node: the client has disconnected."""
        if self._ways_out.pop(key, None) is not None:
            self._unread.discard(key)
            self._tell(key[0], TunnelClosed(key[1], is_mine=True))

    # --- tunnels, at the session node -------------------------------------------------------

    @handles(TunnelOpened)
    def opened(self, peer: PeerNode, message: TunnelOpened) -> None:
        """Accept a client that a peer relays; its identity was checked there."""
        connect = decode_connect(message.connect)
        connection = Connection(f"{message.address} at {peer.name}", "network")
        connection.forwarded = ForwardedIdentity(peer.name, message.user_name, message.rules)
        key = (peer.name, message.number)
        connection.transport = WayBack(self, key, connection)
        self._ways_in[key] = connection
        self._node.admit(connection, connect, self.now_ms)

    def answer(self, key: TunnelKey, data: bytes) -> None:
        """Send bytes of the session to its client through the entry node."""
        peer, number = key
        self._peers.send_named(peer, TUNNELS, TUNNEL_HEAD.pack(number, False) + data)

    def finish(self, key: TunnelKey, connection: Connection) -> None:
        """Close a tunnel; the entry node closes the client's connection."""
        if self._ways_in.get(key) is connection:
            del self._ways_in[key]
            self._tell(key[0], TunnelClosed(key[1], is_mine=False))
        self._node.lost(connection, self.now_ms)

    # --- both sides ---------------------------------------------------------------------------

    def received(self, peer: PeerNode, data: bytes) -> None:
        """Handle bytes from a tunnel; pause the tunnel if its client does not read."""
        number, is_way_in = TUNNEL_HEAD.unpack_from(data)
        key, rest = (peer.name, number), data[TUNNEL_HEAD.size :]
        if is_way_in:
            connection = self._ways_in.get(key)
            if connection is not None:
                self._node.receive(connection, rest, self.now_ms)
            return
        connection = self._ways_out.get(key)
        if connection is not None:
            self._node.send(connection, rest)
            if connection.outbox_bytes > _MOST_UNREAD_BYTES and key not in self._unread:
                self._unread.add(key)
                self._peers.tell(peer, TunnelPaused(number, is_paused=True))

    @handles(TunnelClosed)
    def closed(self, peer: PeerNode, message: TunnelClosed) -> None:
        """Handle that the peer has closed a tunnel."""
        self._end_tunnel((peer.name, message.number), is_way_in=message.is_mine)

    def _end_tunnel(self, key: TunnelKey, *, is_way_in: bool) -> None:
        if is_way_in:
            connection = self._ways_in.pop(key, None)
            if connection is not None:
                self._node.lost(connection, self.now_ms)
            return
        connection = self._ways_out.pop(key, None)
        self._unread.discard(key)
        if connection is not None:
            connection.relay = None
            self._node.close(connection)

    @handles(TunnelPaused)
    def paused(self, peer: PeerNode, message: TunnelPaused) -> None:
        """Pause or resume delivery to a client behind a tunnel."""
        connection = self._ways_in.get((peer.name, message.number))
        if connection is not None:
            connection.is_paused = message.is_paused
            if not message.is_paused:
                self._node.drained(connection, self.now_ms)
                self._node.mark_dirty(connection)

    def settle(self) -> None:
        """Resume tunnels whose clients have read half of the limit."""
        for key in list(self._unread):
            if self._ways_out[key].outbox_bytes <= _MOST_UNREAD_BYTES // 2:
                self._unread.discard(key)
                self._tell(key[0], TunnelPaused(key[1], is_paused=False))

    def peer_up(self, peer: PeerNode) -> None:
        """Ask a peer that is back about waiting clients; end its older sessions of others.

        The others are clients that got a session here without an answer of that peer.
        """
        name = peer.name
        self._lost_ms.pop(name, None)
        for number, asking in self._asking.items():
            if name in asking.waits_for:
                self._ask(name, number, asking.connection, asking.connect)
        for client_id, names in list(self._unasked.items()):
            if name in names:
                self._end_older(name, client_id)
            names.discard(name)
            is_here = self._node.session_of(client_id) is not None
            if not names or not (is_here or self._rival(client_id)):
                del self._unasked[client_id]
        left_ms = self._left_ms.pop(name, None)
        if left_ms is not None:
            self._end_older_than(left_ms, name)

    def _end_older_than(self, left_ms: int, peer: str) -> None:
        """End the sessions that a returning peer has of clients that connected since it left."""
        for session in self._node.client_sessions():
            if session.came_ms >= left_ms:
                self._end_older(peer, session.client_id)

    def peer_added(self, peer: PeerNode) -> None:
        """Record that a peer is not connected yet."""
        self._lost_ms[peer.name] = self.now_ms

    def peer_down(self, peer: PeerNode) -> None:
        """Close all tunnels of a peer."""
        self._lose(peer.name)

    def _lose(self, name: str) -> None:
        self._lost_ms[name] = self.now_ms
        for key in [key for key in self._ways_out if key[0] == name]:
            self._end_tunnel(key, is_way_in=False)
        for key in [key for key in self._ways_in if key[0] == name]:
            self._end_tunnel(key, is_way_in=True)
        for asking in self._asking.values():
            if asking.homes.pop(name, None) is not None:
                asking.waits_for.add(name)
                asking.may_move.discard(name)
                if asking.is_adopting:
                    asking.is_adopting, asking.until_ms = False, self.now_ms + MOST_PATIENCE_MS
                asking.fetched_from = None

    def peer_removed(self, name: str) -> None:
        """Forget a peer that has left the cluster."""
        self._lose(name)
        self._lost_ms[name] = -PATIENCE_MS
        self._left_ms[name] = self.now_ms
        self.advance(self.now_ms)
        self._lost_ms.pop(name)

    def advance(self, now_ms: int) -> None:
        """Decide claims that have waited long enough for peers without an answer."""
        for number, asking in list(self._asking.items()):
            if asking.is_adopting and asking.until_ms <= now_ms:  # its whole past has expired
                self._serve(number)
                continue
            lost = {name for name in asking.waits_for & self._lost_ms.keys() if self.is_lost(name)}
            if asking.until_ms <= now_ms:
                lost = set(asking.waits_for)
                if asking.fetched_from is not None:
                    del self._asking[number]
                    self._open(asking.fetched_from, number, asking)
            if lost:
                asking.waits_for -= lost
                self._unasked.setdefault(asking.connect.client_id, set()).update(lost)
                self._go_on(number, asking)
                for name in sorted(lost - self._lost_ms.keys()):
                    self._end_older(name, asking.connect.client_id)

    def _end_older(self, peer: str, client_id: str) -> None:
        """Make a peer that was not asked in time end its session of a client, if that is older."""
        last_ms = self._last_seen(client_id)
        if last_ms != NOT_HERE:
            self._end_at(peer, client_id, last_ms)

    def _end_at(self, peer: str, client_id: str, last_ms: int) -> None:
        """Make a peer end a session that is older than this node's, unless it is another user's."""
        session = self._node.session_of(client_id)
        owner = "" if session is None else session.user_name
        self._tell(peer, ClaimSession(0, client_id, True, last_ms, owner))

    def wake_at(self) -> int | None:
        """Return when the next claim has waited long enough."""
        names = {name for one in self._asking.values() for name in one.waits_for}
        times = [self._lost_ms[name] + PATIENCE_MS for name in names if name in self._lost_ms]
        times += [one.until_ms for one in self._asking.values()]
        return min(times, default=None)
