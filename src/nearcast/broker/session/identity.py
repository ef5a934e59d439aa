"""Whose session is it: a session belongs to the user who made it.

The client identifier alone is no key: whoever knows it would get the queue and the subscriptions of
another user. A session of a client without a proven name has no owner; the first user who connects
with its identifier becomes the owner, and its subscriptions are checked for that user.
"""

from __future__ import annotations

from nearcast.broker.session.session import Session
from nearcast.broker.settings import BrokerSettings
from nearcast.mqtt import MqttProtocolError, ReasonCode

OTHERS_SESSION = "the session of this client identifier belongs to another user"


def is_owner(session: Session, user_name: str | None) -> bool:
    """Return whether a client with this proven name may have the session."""
    return session.user_name is None or session.user_name == user_name


def maps_identifiers(settings: BrokerSettings) -> bool:
    """Return whether sessions have other identifiers than those in CONNECT."""
    return settings.username_is_client_id or settings.same_identifier == "apart"


def session_identifier(settings: BrokerSettings, client_id: str, user_name: str | None) -> str:
    """Return the identifier of a client's session; raises MqttProtocolError if it can have none.

    Users that are kept apart have sessions named `identifier@user`; no two pairs have one name.
    """
    if settings.username_is_client_id:
        if user_name is None:
            raise MqttProtocolError(
                "a client without a proven user name",
                reason=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                where="CONNECT",
                expected="a user name: it is the client identifier here",
            )
        return user_name
    if settings.same_identifier != "apart":
        return client_id
    own = _escaped(client_id)
    return own if user_name is None else f"{own}@{_escaped(user_name)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("@", "%40")
