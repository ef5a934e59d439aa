"""The interface of the parts of a cluster: each handles some messages and keeps some state.

`cluster.py` has the list of the parts. It calls every method here on all of them, in that order,
and passes each message to the one method that `handles` marks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nearcast.cluster.messages import MESSAGES, PeerMessage
from nearcast.cluster.peer import PeerNode
from nearcast.model.errors import MisuseError

_Part = TypeVar("_Part", bound="ClusterPart")
_Message = TypeVar("_Message", bound=PeerMessage)
Handler = Callable[[PeerNode, Any], None]
_MARK = "_handled_message"


def handles(
    kind: type[_Message],
) -> Callable[
    [Callable[[_Part, PeerNode, _Message], None]], Callable[[_Part, PeerNode, _Message], None]
]:
    """Mark a method of a part as the handler of a message."""

    def mark(
        method: Callable[[_Part, PeerNode, _Message], None],
    ) -> Callable[[_Part, PeerNode, _Message], None]:
        setattr(method, _MARK, kind)
        return method

    return mark


class ClusterPart:
    """One concern of a node in a cluster; a subclass overrides the methods that concern it."""

    # --- peers ------------------------------------------------------------------------------

    def peer_added(self, peer: PeerNode) -> None:
        """Handle that a node has joined the cluster; its link is not up yet."""

    def peer_up(self, peer: PeerNode) -> None:
        """Handle that the link to a peer is up, and its terms are compatible."""

    def peer_down(self, peer: PeerNode) -> None:
        """Handle that a peer is disconnected."""

    def peer_removed(self, name: str) -> None:
        """Handle that a peer has left the cluster for good."""

    # --- a batch ----------------------------------------------------------------------------

    def frame_begins(self) -> None:
        """Handle that a frame of a peer has arrived; its messages follow."""

    def frame_ends(self, peer: PeerNode) -> None:
        """Handle that all messages of a frame are handled."""

    def settle(self) -> None:
        """Queue the messages that follow from a batch, before its journal is stored."""

    def end_batch(self) -> None:
        """Queue the messages that go behind the packets of a batch."""

    # --- time -------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Run everything that is due at `now_ms`."""

    def wake_at(self) -> int | None:
        """Return when `advance` is due next; None if nothing is scheduled."""
        return None

    # --- start and end ----------------------------------------------------------------------

    def restored(self, now_ms: int) -> None:
        """Load the state of the part from the broker's notes, after the journal was replayed."""

    def leave(self, now_ms: int) -> None:
        """Begin to leave the cluster; done once nothing `is_pending`."""

    @property
    def is_pending(self) -> bool:
        """Whether peers have yet to acknowledge something."""
        return False


def callbacks_of(parts: Iterable[ClusterPart], name: str) -> tuple[Callable[..., None], ...]:
    """Return the methods of this name that parts override: the others do nothing."""
    empty = getattr(ClusterPart, name)
    return tuple(getattr(part, name) for part in parts if getattr(type(part), name) is not empty)


def handlers_of(parts: Iterable[ClusterPart]) -> dict[type[PeerMessage], Handler]:
    """Return the handler of each message; a message with none or with two is a MisuseError."""
    found: dict[type[PeerMessage], Handler] = {}
    for part in parts:
        for name in dir(type(part)):
            kind = getattr(getattr(type(part), name), _MARK, None)
            if kind in found:
                raise MisuseError(f"two handlers of {kind.__name__}", where="parts of the cluster")
            if kind is not None:
                found[kind] = getattr(part, name)
    missing = [kind.__name__ for kind in MESSAGES if kind not in found]
    if missing:
        raise MisuseError(f"no handler of {', '.join(missing)}", where="parts of the cluster")
    return found
