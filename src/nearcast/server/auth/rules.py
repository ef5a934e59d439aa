"""Users with hashed passwords, and rules about topics."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nearcast.broker import Connection, LoginVerdict
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.config import AuthSection, Configuration, RuleSection
from nearcast.index.topic_filters import filter_covers, filters_overlap
from nearcast.model.errors import EnvironmentProblem, FileFormatError, MisuseError
from nearcast.mqtt import Connect

_OPERATORS_TOPICS = ("$SYS", "$nearcast")
_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1  # 16 MiB and about 50 ms per check


def hash_password(password: bytes, salt: bytes | None = None) -> str:
    """Return `scrypt$N$r$p$salt$key` for a password file."""
    salt = os.urandom(16) if salt is None else salt
    key = hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL, dklen=32)
    words = [base64.b64encode(one).decode() for one in (salt, key)]
    return "$".join(("scrypt", str(_COST), str(_BLOCK), str(_PARALLEL), *words))


def is_password(password: bytes, stored: str) -> bool:
    """Return whether `stored` is the hash of this password; takes about 50 ms by design."""
    _, cost, block, parallel, salt, key = stored.split("$")
    found = hashlib.scrypt(
        password, salt=base64.b64decode(salt), n=int(cost), r=int(block), p=int(parallel), dklen=32
    )
    return hmac.compare_digest(found, base64.b64decode(key))


def read_users(path: Path) -> dict[str, str]:
    """Return the hash of each user in a password file (`name:hash` per line, # for comments)."""
    users: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, stored = line.partition(":")
        if not colon or not name or stored.count("$") != 5 or not stored.startswith("scrypt$"):
            raise FileFormatError(
                f"line {number}",
                where=str(path),
                expected="name:scrypt$…",
                todo="Write the file with `nearcast passwd`.",
            )
        users[name] = stored
    return users


def set_password(path: Path, name: str, password: bytes | None) -> None:
    """Add or change a user in a password file, or remove one (password None); atomic."""
    if not name or ":" in name or "\n" in name:
        raise MisuseError(repr(name), where="user name", expected="text without : and line ends")
    users = read_users(path) if path.exists() else {}
    if password is None:
        users.pop(name, None)
    else:
        users[name] = hash_password(password)
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{one}:{stored}\n" for one, stored in sorted(users.items()))
    draft.replace(path)


@dataclass(frozen=True, slots=True)
class Rule:
    """One configured rule; the first that applies decides."""

    user: str
    client: str
    publishes: bool
    subscribes: bool
    topic: str
    allows: bool

    @classmethod
    def of(cls, section: RuleSection) -> Rule:
        """Return the rule of a configuration section."""
        return cls(
            section.user,
            section.client,
            section.action in {"publish", "both"},
            section.action in {"subscribe", "both"},
            section.topic,
            section.allow,
        )

    @property
    def is_operators(self) -> bool:
        """Whether the rule allows a named user everything: then it covers $SYS and explain too."""
        return self.allows and self.topic == "#" and self.user != "*"

    def concerns(self, user: str | None, client: str) -> bool:
        """Return whether the rule is about this client."""
        return self.user in ("*", user or "") and self.client in ("*", client)

    def pattern(self, user: str | None, client: str) -> str | None:
        """Return the rule's filter for this client; None if it cannot apply.

        A name that contains a wildcard or a level separator could widen the rule: it matches none.
        """
        text = self.topic
        for mark, value in (("%u", user), ("%c", client)):
            if mark in text:
                if not value or any(one in value for one in "+#/"):
                    return None
                text = text.replace(mark, value)
        return text


class ConfiguredAccess:
    """Authentication and authorisation as `[auth]` configures them.

    Where rules exist, a topic without a deciding rule is refused. There are two defaults: every
    client may publish to `$position`, its own; and a rule on `#`, which in MQTT matches no topic
    that begins with $ [MQTT-4.7.2-1], covers `$SYS/#` and `$nearcast/#` if it names a user.
    """

    def __init__(
        self, auth: AuthSection, users: dict[str, str], loopback_listeners: Iterable[str]
    ) -> None:
        self._anonymous = auth.anonymous
        self._users = users
        self._rules = [Rule.of(section) for section in auth.rules]
        self._loopback = frozenset(loopback_listeners)

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return the verdict at once, or `LATER` if a password has to be checked."""
        if connect.user_name is not None:
            if not self._users:
                return self._nameless(connection)
            return LoginVerdict.WRONG_PASSWORD if connect.password is None else LoginVerdict.LATER
        if connection.certificate_name is not None:
            return LoginVerdict.WELCOME
        return self._nameless(connection)

    def _nameless(self, connection: Connection) -> LoginVerdict:
        if self._anonymous == "always":
            return LoginVerdict.WELCOME
        if self._anonymous == "loopback" and connection.listener in self._loopback:
            return LoginVerdict.WELCOME
        return LoginVerdict.FORBIDDEN

    def check_password(self, connect: Connect) -> LoginVerdict:
        """Return the verdict on a password; slow. An unknown name takes as long as a known one."""
        stored = self._users.get(connect.user_name or "")
        password = connect.password or b""
        if stored is None:
            hash_password(password, b"0" * 16)
            return LoginVerdict.WRONG_PASSWORD
        return (
            LoginVerdict.WELCOME if is_password(password, stored) else LoginVerdict.WRONG_PASSWORD
        )

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the user name proven by password or certificate; None if there is none."""
        if self._users and connect.user_name is not None:
            return connect.user_name
        return connection.certificate_name

    def is_restricted(self, _connection: Connection) -> bool:
        """Return whether there are rules."""
        return bool(self._rules)

    def may_publish(self, user_name: str | None, client_id: str, topic: str) -> bool:
        """Return the decision of the first rule that matches the topic; False if none does."""
        return self._decide(user_name, client_id, topic, subscribes=False)

    def may_subscribe(self, user_name: str | None, client_id: str, topic_filter: str) -> bool:
        """Return the decision of the first rule that covers the filter, or forbids a part of it."""
        return self._decide(user_name, client_id, topic_filter, subscribes=True)

    def refusal(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> str:
        """Return the reason of a refusal: which rule decided, or that none allows it."""
        _, number = self._decision(user_name, client_id, topic_filter, subscribes=subscribes)
        if number is not None:
            rule = self._rules[number]
            return f'rule {number + 1} of [[auth.rules]] (topic "{rule.topic}") forbids it'
        who = "a client without a user name" if user_name is None else f"user {user_name}"
        verb = "subscribe" if subscribes else "publish"
        count = len(self._rules)
        rules = "the only rule of" if count == 1 else f"none of the {count} rules of"
        verdict = f"does not allow {who} to" if count == 1 else f"allows {who} to"
        told = f"{rules} [[auth.rules]] {verdict} {verb} to it"
        if _is_operators(topic_filter):
            told += '; a rule that names the user and has topic "#" does'
        return told

    def _decide(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> bool:
        if not self._rules:
            return True
        return self._decision(user_name, client_id, topic_filter, subscribes=subscribes)[0]

    def _decision(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> tuple[bool, int | None]:
        """Return whether it is allowed, and the index of the deciding rule, if any."""
        for number, rule in enumerate(self._rules):
            if not (rule.subscribes if subscribes else rule.publishes):
                continue
            pattern = rule.pattern(user_name, client_id)
            if pattern is None or not rule.concerns(user_name, client_id):
                continue
            if filter_covers(pattern, topic_filter):
                return rule.allows, number
            if not rule.allows and filters_overlap(pattern, topic_filter):
                return False, number
            if rule.is_operators and _is_operators(topic_filter):
                return True, number
        return not subscribes and topic_filter == POSITION_TOPIC, None


def _is_operators(topic_filter: str) -> bool:
    """Return whether a topic is about the broker itself: metrics, and match explanations."""
    return topic_filter.partition("/")[0] in _OPERATORS_TOPICS


def make_access(configuration: Configuration) -> ConfiguredAccess:
    """Return the access rules of a configuration; reads the password file."""
    path = configuration.auth.users
    try:
        users = read_users(Path(path)) if path is not None else {}
    except OSError as problem:
        raise EnvironmentProblem(
            str(problem.strerror), where=str(path), todo="Create it with `nearcast passwd`."
        ) from None
    loopback = [str(number) for number, one in enumerate(configuration.listener) if one.is_loopback]
    return ConfiguredAccess(configuration.auth, users, loopback)
