"""What the broker reports to deferred retained delivery, where nothing is deferred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearcast.broker.publish.message import Message
from nearcast.broker.session.session import Session, SessionSubscription

if TYPE_CHECKING:  # a broker without deferred retained messages does not load these
    from nearcast.broker.retained.deferred import DeferredRetained
    from nearcast.retained import Policies


class RetainedHooks:
    """Sends all retained messages at once: no call has an effect. `DeferredRetained` derives."""

    deferred: DeferredRetained | None = None
    """The same object, where some topics are deferred."""

    def concerns(self, _topic_filter: str, /) -> bool:
        """Return whether retained messages of some matching topic may be deferred."""
        return False

    def subscribed(
        self,
        _subscription: SessionSubscription,
        found: Sequence[Message],
        /,
        *,
        handling: int,  # noqa: ARG002
        is_new: bool,  # noqa: ARG002
        now: bool,  # noqa: ARG002
    ) -> list[Message]:
        """Return the retained messages that are sent to a subscription at once."""
        return list(found)

    def before_live(
        self,
        _message: Message,
        _publisher: Session | None,
        /,
        *,
        retain: bool,
        reaches_all: bool = True,
        counts: bool = True,
    ) -> None:
        """Send first the deferred copies that a live message does not replace."""

    def complaint(self, _message: Message, _publisher: Session | None, /) -> str:
        """Return why the creation time of a message to be retained is not used; else nothing."""
        return ""

    def kept_elsewhere(self, _message: Message, /) -> None:
        """Prepare for a message of another node that is about to replace a retained one."""

    def forgotten(self, _topic: str, /) -> None:
        """Stop all waiting on a topic whose retained message has expired."""

    def unsubscribed(self, _one: SessionSubscription, /) -> None:
        """Forget a subscription that is about to be removed."""

    def disconnected(self, _session: Session, /, *, is_kept: bool) -> None:
        """End a session's waiting."""

    def load(self, _policies: Policies, /) -> None:
        """Replace the policies."""
