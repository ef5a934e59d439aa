"""Sessions that move with their clients: the node that redirected a client gives its session away.

    old home                      new home
       │ ◄── ClaimSession ──────────  │   the client has connected here
       │ ─── SessionClaimed ───────►  │   `may_move`
       │ ◄── FetchSession ──────────  │
       │ ─── FetchedSession ───────►  │   journaled; CONNACK with Session Present
       │ ◄── ClaimSession (clean) ──  │   repeated until it is answered, also after a restart
       ends its copy

The old home keeps the session, and queues for it, until the new home has it on disk. A crash of
either in between leaves the session at the old home or at both; the last message then ends the
older one. The new home registers the subscriptions as after a crash (`SpatialRouting.came_back`):
holders match them with the events that they still know, and what the client had is left out.
Only subscriptions with a place can move so (decision 0045).

Read next: `session_relay.py`, `redirects.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct

from nearcast.broker import Broker, Session
from nearcast.broker.persistence.moved_session import is_still, pack_session
from nearcast.cluster.causal_groups import CausalGroups
from nearcast.cluster.messages import (
    ClaimSession,
    FetchedSession,
    FetchSession,
    MovedPlaces,
)
from nearcast.cluster.part import ClusterPart, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry
from nearcast.cluster.spatial_part import NoSpatialPart
from nearcast.locality.registration.gateway import FOREVER

_ADOPTED, _SENT_AWAY = b"M", b"A"
_LAST, _SENT = Struct("<Q"), Struct("<QQ")
_LONGEST_MS = 3_600_000
"""A client that follows an offer later than this finds its session where it was."""
NOTHING = MovedPlaces({}, [], [], {})


@dataclass(frozen=True, slots=True)
class SentAway:
    """A client that was sent to a peer, and has not connected here since."""

    peer: str
    came_ms: int
    """When it had last connected here."""
    at_ms: int

    def to_bytes(self) -> bytes:
        """Return it as the value of a note."""
        return _SENT.pack(self.came_ms, self.at_ms) + self.peer.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SentAway:
        """Return what `to_bytes` wrote."""
        came_ms, at_ms = _SENT.unpack_from(data)
        return cls(data[_SENT.size :].decode(), came_ms, at_ms)


class SessionMoves(ClusterPart):
    """The sessions whose clients were sent to a peer, and those that came here in this way.

    Complexity: O(1) per call; O(notes + queue) for a session that moves.
    """

    def __init__(
        self,
        node: Broker,
        peers: PeerRegistry,
        spatial: NoSpatialPart,
        causal: CausalGroups,
    ) -> None:
        self._node = node
        self._peers = peers
        self._spatial = spatial
        self._causal = causal
        self._sent_away: dict[str, SentAway] = {}
        self._adopted: dict[str, tuple[str, int]] = {}  # by client: old home, when it came here
        self._claims: dict[int, str] = {}  # by number: the client of a claim without an answer
        self._number = 0
        self.came_from: Callable[[str, int], None] = lambda _client, _at_ms: None

    # --- the old home -----------------------------------------------------------------------

    def can_move(self, session: Session) -> bool:
        """Return whether nothing of a session would be lost or doubled if it moved."""
        return (
            session.is_durable
            and is_still(session)
            and all(
                self._spatial.concerns(one) and not self._causal.filters_of(one.topic_filter)
                for one in session.subscriptions.values()
            )
        )

    def send_away(self, session: Session, peer: str, now_ms: int) -> None:
        """Allow a peer to fetch the session of a client that was just redirected there."""
        for client_id, sent in list(self._sent_away.items()):
            if sent.at_ms + _LONGEST_MS <= now_ms:
                self._forget(client_id)
        sent = self._sent_away[session.client_id] = SentAway(peer, session.came_ms, now_ms)
        key = _SENT_AWAY + session.client_id.encode()
        self._node.notes.set(key, sent.to_bytes(), now_ms + _LONGEST_MS)

    def _forget(self, client_id: str) -> None:
        del self._sent_away[client_id]
        self._node.notes.delete(_SENT_AWAY + client_id.encode())

    def may_move(self, client_id: str, peer: str) -> bool:
        """Return whether a client that has connected to a peer was sent there by this node."""
        session = self._found(client_id, peer)
        return session is not None and self.can_move(session)

    def _found(self, client_id: str, peer: str) -> Session | None:
        """Return the session of a client that was sent to a peer, and has not been here since."""
        sent, session = self._sent_away.get(client_id), self._node.session_of(client_id)
        if sent is None:
            return None
        if session is None or session.link is not None or session.came_ms != sent.came_ms:
            self._forget(client_id)
            return None
        return session if sent.peer == peer else None

    @handles(FetchSession)
    def fetched(self, peer: PeerNode, message: FetchSession) -> None:
        """Send a session to the peer that its client has followed the offer to."""
        session = self._found(message.client_id, peer.name)
        if session is None or not self.can_move(session):
            self._peers.tell(peer, FetchedSession(message.number, b"", NOTHING))
            return
        at_ms = self._sent_away[message.client_id].at_ms
        records, places = pack_session(session), self._spatial.pack(session)
        self._peers.tell(peer, FetchedSession(message.number, records, places, at_ms))

    def end_session(self, peer: str, claim: ClaimSession, now_ms: int) -> None:
        """End the session of a client that connected to a peer: it moved there, or began anew."""
        if self._found(claim.client_id, peer) is not None:
            self._forget(claim.client_id)
            self._peers.counts.redirects_followed += 1
        if claim.number < 0:
            self._node.hand_over(claim.client_id, now_ms)
        else:
            self._node.give_up(claim.client_id, now_ms)

    # --- the new home -----------------------------------------------------------------------

    def adopt(self, home: str, message: FetchedSession, last_ms: int, now_ms: int) -> bool:
        """Restore a session of a peer here, and make the peer end its copy.

        Returns False if that is not possible. `last_ms` is when its client connected to the peer.
        """
        session = self._node.adopt(
            message.records,
            now_ms,
            lambda session, finish: self._spatial.adopt(session, message.places, finish, now_ms),
        )
        if session is None:
            return False
        came_ms = max(now_ms, last_ms + 1)
        self._adopted[session.client_id] = (home, came_ms)
        note = _LAST.pack(came_ms) + home.encode()
        self._node.notes.set(_ADOPTED + session.client_id.encode(), note, FOREVER)
        self._claim(session.client_id)
        self.came_from(session.client_id, message.asked_ms)
        return True

    def _claim(self, client_id: str) -> None:
        """Make the old home end its copy; an answer is expected."""
        home, came_ms = self._adopted[client_id]
        self._number -= 1  # the session relay's claims have the numbers above 0
        self._claims[self._number] = client_id
        session = self._node.session_of(client_id)
        owner = "" if session is None else session.user_name
        self._peers.tell_named(home, ClaimSession(self._number, client_id, True, came_ms, owner))

    def answered(self, number: int) -> bool:
        """Handle the old home's answer to a claim; return whether the claim was of this part."""
        client_id = self._claims.pop(number, None)
        if client_id is not None and self._adopted.pop(client_id, None) is not None:
            self._node.notes.delete(_ADOPTED + client_id.encode())
        return client_id is not None

    def peer_up(self, peer: PeerNode) -> None:
        """Repeat what the peer may not have received."""
        for client_id, (home, _) in list(self._adopted.items()):
            if home == peer.name:
                self._claim(client_id)

    def peer_removed(self, name: str) -> None:
        """Forget the sessions that came from a peer that has left for good."""
        for client_id, (home, _) in list(self._adopted.items()):
            if home == name:
                del self._adopted[client_id]
                self._node.notes.delete(_ADOPTED + client_id.encode())

    def restored(self, _now_ms: int) -> None:
        """Load which clients were sent away, and which old homes have not answered."""
        for key, value in self._node.notes.starting_with(_SENT_AWAY):
            self._sent_away[key[1:].decode()] = SentAway.from_bytes(value)
        for key, value in self._node.notes.starting_with(_ADOPTED):
            (came_ms,) = _LAST.unpack_from(value)
            self._adopted[key[1:].decode()] = (value[_LAST.size :].decode(), came_ms)

    @property
    def is_pending(self) -> bool:
        """Whether an old home has yet to end its copy."""
        return bool(self._adopted)
