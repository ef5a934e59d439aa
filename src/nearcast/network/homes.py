"""A client that comes to another node than its session is at: the session stays, the bytes travel.

    client ──TCP── gateway ══ tunnel: bytes over the link ══ home: session, queue, protocol

The node that a client comes to claims it at all others. Nobody has its session: it is welcome
there, and that node is its home. Somebody has: a tunnel is opened, and the home goes on with the
client as if it had come itself, taking over from an older connection wherever that is. A client
that begins anew ends what others have of it, so it gets a home where it is.

A tunnel ends with its link, which is to both sides as if the connection was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TypeAlias

from nearcast.model.errors import PeerProtocolError
from nearcast.mqtt import Connect, MqttProtocolError, decode_packet, encode_packet
from nearcast.mqtt.framing import long_length
from nearcast.network.messages import (
    Claim,
    Claimed,
    Told,
    TunnelClosed,
    TunnelOpened,
    TunnelPaused,
)
from nearcast.node import Connection, Node
from nearcast.node.connection import Voucher

PATIENCE_MS = 3_000
"""How long a client waits for a node that was just lost from sight: it may have its session."""
MOST_PATIENCE_MS = 5_000
"""How long a client waits in all; a node that has not answered by then is asked later."""
NOT_HERE, COMES_HERE = -1, -2
"""What `Claimed` says instead of an instant."""
_NUMBER = Struct("<Q?")
_MOST_UNREAD_BYTES = 1 << 18

TunnelKey: TypeAlias = tuple[str, int]  # the other node, and the number that the gateway gave


@dataclass(slots=True)
class Asking:
    """A client that waits for the answers of other nodes."""

    connection: Connection
    connect: Connect
    waits_for: set[str]
    until_ms: int
    homes: dict[str, int] = field(default_factory=dict)
    """Who has a session of it, and when it was last there."""


class Homes:
    """Finds the homes of clients, and carries the bytes of those who are not at home.

    Contract: while all links are up, a client has one session in the whole network. Where nodes
    could not hear each other it may have got two; the one that was used last stays.

    Complexity: O(nodes) for a client that is not known here, O(1) for anything else.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        tell: Callable[[str, Told], None],
        carry: Callable[[str, bytes], None],
    ) -> None:
        self._name = name
        self._node = node
        self._tell = tell
        self._carry = carry
        self._number = 0
        self._asking: dict[int, Asking] = {}
        self._ways_out: dict[TunnelKey, Connection] = {}  # this node is the gateway
        self._ways_in: dict[TunnelKey, Connection] = {}  # this node is the home
        self._unread: set[TunnelKey] = set()
        self._unasked: dict[str, set[str]] = {}
        self._lost_ms: dict[str, int] = {}  # when a node was lost from sight
        self._left_ms: dict[str, int] = {}  # when a node left for good
        self.now_ms = 0

    @property
    def relayed(self) -> int:
        """How many clients here have their home elsewhere."""
        return len(self._ways_out)

    # --- claims -----------------------------------------------------------------------------

    def claim(
        self, connection: Connection, connect: Connect, present: list[str], away: list[str]
    ) -> bool:
        """Ask all who are there about a client; False if nobody is."""
        soon = [name for name in away if not (connect.clean_start or self._is_lost(name))]
        gone = set(away).difference(soon)
        if gone:
            self._unasked[connect.client_id] = gone
        if not (present or soon):
            return False
        self._number += 1
        until_ms = self.now_ms + MOST_PATIENCE_MS
        self._asking[self._number] = Asking(connection, connect, {*present, *soon}, until_ms)
        for name in present:
            self._ask(name, self._number, connect)
        return True

    def _is_lost(self, name: str) -> bool:
        """Tell whether a node that is not there is not worth waiting for."""
        return self.now_ms >= self._lost_ms.get(name, -PATIENCE_MS) + PATIENCE_MS

    def _ask(self, peer: str, number: int, connect: Connect) -> None:
        self._tell(peer, Claim(number, connect.client_id, connect.clean_start))

    def asked(self, peer: str, message: Claim) -> None:
        """Say whether a client is at home here."""
        last_ms = NOT_HERE
        rival = self._rival(message.client_id)
        if rival is not None and self._name > peer:
            last_ms = COMES_HERE
        else:
            if rival is not None:
                self._yield(rival)
            last_ms = self._answer(peer, message)
        if message.number:
            self._tell(peer, Claimed(message.number, last_ms))

    def _rival(self, client_id: str) -> int | None:
        """Return the claim of a client who comes here at the very same time."""
        claims = self._asking.items()
        return next((n for n, one in claims if one.connect.client_id == client_id), None)

    def _yield(self, number: int) -> None:
        """Send a client away that has come to two nodes at once; the other one keeps it."""
        self._node.state.close(self._asking.pop(number).connection)

    def _answer(self, peer: str, message: Claim) -> int:
        last_ms = self._last_seen(message.client_id)
        if not message.clean or last_ms == NOT_HERE:
            return last_ms
        if (last_ms, self._name) > (message.last_ms, peer):  # the other way round
            self._tell(peer, Claim(0, message.client_id, clean=True, last_ms=last_ms))
            return last_ms
        self._node.give_up(message.client_id, self.now_ms)
        return NOT_HERE

    def _last_seen(self, client_id: str) -> int:
        """Return when a client with a session here came last, or left if that is forgotten."""
        session = self._node.state.sessions.get(client_id)
        if session is None:
            return NOT_HERE
        return session.came_ms or max(0, session.ends_at_ms - session.expiry_s * 1000)

    def answered(self, peer: str, message: Claimed) -> None:
        """Take in what another node says of a client."""
        asking = self._asking.get(message.number)
        if asking is None:
            return
        asking.waits_for.discard(peer)
        if message.last_ms == COMES_HERE:
            self._yield(message.number)
        else:
            if message.last_ms >= 0:
                asking.homes[peer] = message.last_ms
            self._go_on(message.number, asking)

    def _go_on(self, number: int, asking: Asking) -> None:
        if asking.waits_for:
            return
        del self._asking[number]
        if not asking.homes:
            self._node.found_home(asking.connection, None, self.now_ms)
            return
        home = max(asking.homes, key=lambda name: (asking.homes[name], name))
        for name in asking.homes:
            if name != home:
                self._tell(name, Claim(0, asking.connect.client_id, clean=True))
        self._open(home, number, asking)

    # --- tunnels, seen from the gateway -----------------------------------------------------

    def _open(self, home: str, number: int, asking: Asking) -> None:
        connection, connect = asking.connection, asking.connect
        user_name = self._node.state.access.identity(connect, connection)
        packet = encode_packet(replace(connect, password=None))
        self._tell(home, TunnelOpened(number, packet, user_name, connection.peer))
        self._ways_out[home, number] = connection
        self._node.found_home(connection, _WayOut(self, (home, number)), self.now_ms)

    def say(self, key: TunnelKey, data: bytes) -> None:
        """Let the home hear what a client says."""
        peer, number = key
        self._carry(peer, _NUMBER.pack(number, True) + data)

    def gone(self, key: TunnelKey) -> None:
        """Let the home know that a client is gone."""
        if self._ways_out.pop(key, None) is not None:
            self._unread.discard(key)
            self._tell(key[0], TunnelClosed(key[1], is_mine=True))

    # --- tunnels, seen from the home --------------------------------------------------------

    def opened(self, peer: str, message: TunnelOpened) -> None:
        """Take a client that another node relays."""
        connect = _decode_connect(message.connect)
        connection = Connection(f"{message.address} at {peer}", "network")
        connection.voucher = Voucher(peer, message.user_name)
        key = (peer, message.number)
        connection.transport = _WayBack(self, key, connection)
        self._ways_in[key] = connection
        self._node.admit(connection, connect, self.now_ms)

    def answer(self, key: TunnelKey, data: bytes) -> None:
        """Let a client hear what its home says."""
        peer, number = key
        self._carry(peer, _NUMBER.pack(number, False) + data)

    def finish(self, key: TunnelKey, connection: Connection) -> None:
        """Let the gateway close."""
        if self._ways_in.get(key) is connection:
            del self._ways_in[key]
            self._tell(key[0], TunnelClosed(key[1], is_mine=False))
        self._node.lost(connection, self.now_ms)

    # --- both ---------------------------------------------------------------------------------

    def received(self, peer: str, data: bytes) -> None:
        """Take bytes that came through a tunnel."""
        number, is_way_in = _NUMBER.unpack_from(data)
        key, rest = (peer, number), data[_NUMBER.size :]
        if is_way_in:
            connection = self._ways_in.get(key)
            if connection is not None:
                self._node.receive(connection, rest, self.now_ms)
            return
        connection = self._ways_out.get(key)
        if connection is not None:
            self._node.state.send(connection, rest)
            if connection.outbox_bytes > _MOST_UNREAD_BYTES and key not in self._unread:
                self._unread.add(key)
                self._tell(peer, TunnelPaused(number, is_paused=True))

    def closed(self, peer: str, message: TunnelClosed) -> None:
        """Take note that the other side has ended a tunnel."""
        key = (peer, message.number)
        if message.is_mine:
            connection = self._ways_in.pop(key, None)
            if connection is not None:
                self._node.lost(connection, self.now_ms)
            return
        connection = self._ways_out.pop(key, None)
        self._unread.discard(key)
        if connection is not None:
            connection.relay = None
            self._node.state.close(connection)

    def paused(self, peer: str, message: TunnelPaused) -> None:
        """Let a client's queue wait, or go on."""
        connection = self._ways_in.get((peer, message.number))
        if connection is not None:
            connection.is_paused = message.is_paused
            if not message.is_paused:
                self._node.drained(connection, self.now_ms)
                self._node.state.mark_grown(connection)

    def settle(self) -> None:
        """Let homes go on whose clients have read what was sent."""
        for key in list(self._unread):
            if self._ways_out[key].outbox_bytes <= _MOST_UNREAD_BYTES // 2:
                self._unread.discard(key)
                self._tell(key[0], TunnelPaused(key[1], is_paused=False))

    def came_up(self, peer: str) -> None:
        """Ask a node that is back about those who wait; end what it has of those who did not."""
        self._lost_ms.pop(peer, None)
        for number, asking in self._asking.items():
            if peer in asking.waits_for:
                self._ask(peer, number, asking.connect)
        for client_id, names in list(self._unasked.items()):
            if peer in names:
                self._end_older(peer, client_id)
            names.discard(peer)
            is_here = client_id in self._node.state.sessions
            if not names or not (is_here or self._rival(client_id)):
                del self._unasked[client_id]
        left_ms = self._left_ms.pop(peer, None)
        if left_ms is not None:
            self._end_older_than(left_ms, peer)

    def _end_older_than(self, left_ms: int, peer: str) -> None:
        """Let a node that had left for good end what it has of those who have come since."""
        for session in list(self._node.state.sessions.values()):
            if session.came_ms >= left_ms:  # other nodes have not come at any time
                self._end_older(peer, session.client_id)

    def away(self, peer: str) -> None:
        """Take note that a node is not there, for now."""
        self._lost_ms[peer] = self.now_ms

    def went_down(self, peer: str) -> None:
        """End all tunnels with a node."""
        self.away(peer)
        for key in [key for key in self._ways_out if key[0] == peer]:
            self.closed(peer, TunnelClosed(key[1], is_mine=False))
        for key in [key for key in self._ways_in if key[0] == peer]:
            self.closed(peer, TunnelClosed(key[1], is_mine=True))
        for asking in self._asking.values():
            if asking.homes.pop(peer, None) is not None:
                asking.waits_for.add(peer)

    def parted(self, peer: str) -> None:
        """Forget a node that has left for good."""
        self.went_down(peer)
        self._lost_ms[peer] = -PATIENCE_MS
        self._left_ms[peer] = self.now_ms
        self.advance()
        self._lost_ms.pop(peer)

    def advance(self) -> None:
        """Let those go on who have waited long enough for nodes that are not there."""
        for number, asking in list(self._asking.items()):
            lost = {name for name in asking.waits_for & self._lost_ms.keys() if self._is_lost(name)}
            if asking.until_ms <= self.now_ms:
                lost = set(asking.waits_for)
            if lost:
                asking.waits_for -= lost
                self._unasked.setdefault(asking.connect.client_id, set()).update(lost)
                self._go_on(number, asking)
                for name in sorted(lost - self._lost_ms.keys()):
                    self._end_older(name, asking.connect.client_id)

    def _end_older(self, peer: str, client_id: str) -> None:
        """Let a node that was not asked in time end what it has of a client, if that is older."""
        last_ms = self._last_seen(client_id)
        if last_ms != NOT_HERE:
            self._tell(peer, Claim(0, client_id, clean=True, last_ms=last_ms))

    def wake_at(self) -> int | None:
        """Say when somebody has waited long enough."""
        names = {name for one in self._asking.values() for name in one.waits_for}
        times = [self._lost_ms[name] + PATIENCE_MS for name in names if name in self._lost_ms]
        times += [one.until_ms for one in self._asking.values()]
        return min(times, default=None)


class _WayOut:
    """The relay of a client here whose home is elsewhere."""

    __slots__ = ("_homes", "_key")

    def __init__(self, homes: Homes, key: TunnelKey) -> None:
        self._homes = homes
        self._key = key

    def write(self, data: bytes) -> None:
        self._homes.say(self._key, data)

    def close(self) -> None:
        self._homes.gone(self._key)


class _WayBack:
    """The transport of a client elsewhere whose home is here."""

    __slots__ = ("_connection", "_homes", "_key")

    def __init__(self, homes: Homes, key: TunnelKey, connection: Connection) -> None:
        self._homes = homes
        self._key = key
        self._connection = connection

    def write(self, chunks: list[bytes]) -> None:
        if chunks:
            self._homes.answer(self._key, b"".join(chunks))

    def pause_reading(self) -> None:
        """Do nothing: links have a flow control of their own."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        self._homes.finish(self._key, self._connection)


def _decode_connect(data: bytes) -> Connect:
    try:
        body = 2 if data[1] < 128 else long_length(data, 1, len(data))[1]
        packet = decode_packet(data[0], data[body:])
    except (MqttProtocolError, IndexError) as problem:
        raise PeerProtocolError(str(problem), where="relayed CONNECT") from None
    if not isinstance(packet, Connect):
        raise PeerProtocolError(type(packet).__name__, where="relayed CONNECT")
    return packet
