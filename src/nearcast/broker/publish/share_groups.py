"""Share groups: each message goes to one member, and the members take turns (section 4.8.2)."""

from __future__ import annotations

from nearcast.broker.session.session import SessionSubscription

GroupKey = tuple[str, str]  # group, topic filter

_Turn = tuple[int, int]
"""A member's last turn, and minus how often it was served again since: the least is next."""
_NEVER: _Turn = (0, 0)


class ShareGroup:
    """The members of one share group on one filter, and their turns.

    Members without conditions are in `members`, the next one first. Members with conditions are in
    the matcher: the caller of `pick_among` brings those that match. A peer is one member, and gets
    as many messages in a row as it has connected members. A new member comes last.
    """

    __slots__ = ("_last", "_turn", "conditional", "key", "members", "own_conditional")

    def __init__(self, key: GroupKey = ("", "")) -> None:
        self.key = key
        self.members: dict[str, SessionSubscription] = {}  # by client identifier
        self.conditional = 0  # how many members with conditions there are
        self.own_conditional = 0  # those of them that are not peers
        self._last: dict[str, _Turn] = {}  # by client identifier
        self._turn = 0

    def join(self, subscription: SessionSubscription) -> None:
        """Add a member; one that joins again keeps its turn."""
        name = subscription.session.client_id
        if name not in (self.members if subscription.selection is None else self._last):
            self._turn += 1
            self._last[name] = (self._turn, 0)
        if subscription.selection is None:
            self.members[name] = subscription
        else:
            self.conditional += 1
            self.own_conditional += not subscription.session.is_peer

    def leave(self, subscription: SessionSubscription) -> None:
        """Remove a member; a client that has replaced its subscription keeps its turn."""
        name = subscription.session.client_id
        if subscription.selection is None:
            del self.members[name]
            if not self.conditional:
                del self._last[name]
            return
        self.conditional -= 1
        self.own_conditional -= not subscription.session.is_peer
        if not self.conditional:
            self._last = {name: self._last[name] for name in self.members}

    def pick(self, qos: int, *, is_arrival: bool = False) -> SessionSubscription | None:
        """Return the next member without conditions: one that reads, else one that can queue.

        O(1) while all read. `is_arrival` leaves out peers.
        """
        waiting: SessionSubscription | None = None
        for member in self.members.values():
            if is_arrival and member.session.is_peer:
                continue
            if member.is_ready:
                self._serve(member)
                return member
            if waiting is None and min(qos, member.qos) and not member.session.is_over:
                waiting = member
        if waiting is not None:
            self._serve(waiting)
        return waiting

    def pick_among(
        self, candidates: list[SessionSubscription], qos: int
    ) -> SessionSubscription | None:
        """Return the next of some members, as `pick` does; O(candidates)."""
        ready = [candidate for candidate in candidates if candidate.is_ready]
        ready = ready or [
            one for one in candidates if min(qos, one.qos) and not one.session.is_over
        ]
        if not ready:
            return None
        last = self._last
        chosen = min(ready, key=lambda one: (last.get(one.session.client_id, _NEVER), one.number))
        self._serve(chosen)
        return chosen

    def _serve(self, subscription: SessionSubscription) -> None:
        """Move a member behind all others, unless a peer has further members in its turn."""
        name = subscription.session.client_id
        if subscription.members > 1:
            last, more = self._last.get(name, _NEVER)
            if subscription.members > 1 - more:
                self._last[name] = (last, more - 1)
                return
        self._turn += 1
        self._last[name] = (self._turn, 0)
        if name in self.members:
            self.members[name] = self.members.pop(name)


class ShareGroups:
    """All share groups with members, by group and filter."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, ShareGroup] = {}
        self.own_conditional = 0  # members with conditions, of all groups, peers not counted

    def get(self, key: GroupKey) -> ShareGroup | None:
        """Return a group, if it has members."""
        return self._groups.get(key)

    def all(self) -> list[ShareGroup]:
        """Return all groups. O(groups)."""
        return list(self._groups.values())

    def join(self, subscription: SessionSubscription) -> ShareGroup:
        """Add a member to its group; return the group."""
        key = (subscription.group, subscription.topic_filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ShareGroup(key)
        before = group.own_conditional
        group.join(subscription)
        self.own_conditional += group.own_conditional - before
        return group

    def leave(self, subscription: SessionSubscription) -> ShareGroup:
        """Remove a member from its group, and the group with its last member."""
        group = self._groups[subscription.group, subscription.topic_filter]
        before = group.own_conditional
        group.leave(subscription)
        self.own_conditional += group.own_conditional - before
        if not (group.members or group.conditional):
            del self._groups[group.key]
        return group
