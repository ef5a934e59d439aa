"""Who may log in, and rules about topics.

Read next: `login_checks.py` (passwords and plugins), `gate.py` (bans, guesses, rates).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nearcast.broker import Connection, LoginVerdict
from nearcast.broker.access import Exchange
from nearcast.broker.publish.routes import POSITION_TOPIC
from nearcast.config import AuthSection, Configuration, RuleSection, is_loopback_host
from nearcast.index.topic_filters import filter_covers, filters_overlap
from nearcast.model.errors import EnvironmentProblem
from nearcast.mqtt import Connect
from nearcast.server.auth.certificates import CertificateUsers
from nearcast.server.auth.gate import LoginGate
from nearcast.server.auth.grants import LoginGrant, rules_in
from nearcast.server.auth.login_checks import LoginChecks, make_plugins
from nearcast.server.auth.logins import Login, LoginPlugin, request_of
from nearcast.server.auth.passwords import read_users
from nearcast.server.auth.scram import METHOD as SCRAM
from nearcast.server.auth.scram import ScramExchange

_OPERATORS_TOPICS = ("$SYS", "$nearcast")
_MARKS = re.compile("%[uc]")


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

        A name with a wildcard or a level separator could widen the rule: then a rule that allows
        does not apply, and one that forbids covers all that it could mean.
        """
        if "%" not in self.topic:
            return self.topic
        names = {"%u": user or "", "%c": client}
        marks = _MARKS.findall(self.topic)
        if any(not names[mark] for mark in marks):
            return None
        if any(sign in names[mark] for mark in marks for sign in "+#/"):
            return None if self.allows else _all_from_mark(self.topic)
        return _MARKS.sub(lambda found: names[found[0]], self.topic)  # once: names may have marks


def _all_from_mark(topic: str) -> str:
    """Return the filter of all topics that a rule might mean, whatever its %u and %c stand for."""
    levels = topic.split("/")
    first = next(place for place, level in enumerate(levels) if _MARKS.search(level))
    return "/".join([*levels[:first], "#"])


class ConfiguredAccess:
    """Authentication and authorisation as `[auth]` configures them.

    Where rules exist, a topic without a deciding rule is refused. There are two defaults: every
    client may publish to `$position`, its own; and a rule on `#`, which in MQTT matches no topic
    that begins with $ [MQTT-4.7.2-1], covers `$SYS/#` and `$nearcast/#` if it names a user.
    """

    def __init__(
        self,
        auth: AuthSection,
        users: dict[str, str],
        loopback_listeners: Iterable[str],
        *,
        has_certificates: bool = False,
        plugins: Sequence[LoginPlugin] = (),
        gate: LoginGate | None = None,
    ) -> None:
        """`has_certificates`: some listener asks clients for certificates, which prove names."""
        self._anonymous = auth.anonymous
        self._users = users
        self._rules = [Rule.of(section) for section in auth.rules]
        self._loopback = frozenset(loopback_listeners)
        self._has_certificates = has_certificates
        self._certificates = CertificateUsers(auth.certificates)
        self.gate = gate or LoginGate()
        self._grants = self.gate.grants
        self.checks = LoginChecks(users, plugins)
        self._checks_names = bool(users or auth.users is not None or plugins)
        self._grants_rules = bool(plugins)
        self.on_allowed: Callable[[dict[str, object]], None] | None = None  # for the audit log

    def authenticate(self, connect: Connect, connection: Connection) -> LoginVerdict:
        """Return the verdict at once, or `LATER` if a password has to be checked."""
        connection.proof = None
        user, certified = connect.user_name, self._of_certificate(connection)
        has_secret = connect.password is not None
        if self._checks_names and (user is not None or has_secret):
            if not has_secret:
                return self._settled(connection, Login(LoginVerdict.WRONG_PASSWORD, user))
            return self.gate.before(connection, connect)
        if self.checks.plugins and certified is None:
            return self.gate.before(connection, connect)  # a plugin may know it without a password
        if certified is not None:
            return self._settled(connection, Login(LoginVerdict.WELCOME, certified))
        return self._settled(connection, Login(self._nameless(connection)))

    def begin_exchange(self, method: str, connection: Connection) -> Exchange | None:
        """Return a login by SCRAM-SHA-256, if a user has keys for it."""
        if method != SCRAM or not self.checks.has_scram:
            return None
        connection.proof = None
        return ScramExchange(
            self.checks.scram_keys,
            self._settled_exchange,
            connection,
            secret=self.gate.secret,
            nonce=self.gate.nonce(),
        )

    def _settled_exchange(
        self, user: str, verdict: LoginVerdict, connection: Connection
    ) -> LoginVerdict:
        return self._settled(connection, Login(verdict, user))

    def _settled(self, connection: Connection, login: Login) -> LoginVerdict:
        return self.gate.settle(connection, login)

    def check(self, connection: Connection) -> Login:
        """Return the outcome of a login with a password or for a plugin; slow, for threads."""
        login = self.checks.check(request_of(connection))
        if login is None:  # nobody knows it, and it has no password
            return Login(self._nameless(connection))
        return login

    def _of_certificate(self, connection: Connection) -> str | None:
        if connection.certificate:
            return self._certificates.find(connection.certificate)
        return connection.certificate_name

    def _nameless(self, connection: Connection) -> LoginVerdict:
        if connection.certificate and self._of_certificate(connection) is None:
            return LoginVerdict.FORBIDDEN  # a certificate of nobody is worse than none
        if self._anonymous == "always":
            return LoginVerdict.WELCOME
        if self._anonymous == "loopback" and self._is_of_this_machine(connection):
            return LoginVerdict.WELCOME
        return LoginVerdict.FORBIDDEN

    def _is_of_this_machine(self, connection: Connection) -> bool:
        """Return whether the listener is for this machine only, and the client is there, too."""
        if connection.listener not in self._loopback or connection.is_proxied:
            return False
        host = connection.address.rpartition(":")[0]
        return not connection.address or is_loopback_host(host)

    def check_password(self, connect: Connect) -> LoginVerdict:
        """Return the verdict on a password; slow. An unknown name takes as long as a known one."""
        return self.checks.check_password(connect.user_name or "", connect.password or b"").verdict

    def identity(self, connect: Connect, connection: Connection) -> str | None:
        """Return the user name proven by password or certificate; None if there is none."""
        if connection.proof is not None:
            return connection.proof.user
        if self._checks_names and connect.user_name is not None:
            return connect.user_name
        return self._of_certificate(connection)

    def rules_of(self, connection: Connection) -> bytes | None:
        """Return the rules of a login; none that allow anything where rules must come with it."""
        proof = connection.proof
        if proof is not None and proof.rules is not None:
            return proof.rules
        return b"[]" if self._grants_rules else None

    def bind(self, connection: Connection, client_id: str) -> bool:
        """Keep the rules of a login with its session; return whether others were kept before.

        A login without rules ends those of an earlier one.
        """
        forwarded, proof = connection.forwarded, connection.proof
        if forwarded is not None:
            user, text = forwarded.user_name, forwarded.rules
        else:
            user, text = (None, None) if proof is None else (proof.user, proof.rules)
        grant = (
            None if text is None else LoginGrant(rules_in(text), is_forwarded=forwarded is not None)
        )
        return self._grants.set(user, client_id, grant)

    def _grant(self, user_name: str | None, client_id: str) -> LoginGrant | None:
        """Return what a login has brought along and still counts: its source may be gone."""
        found = self._grants.find(user_name, client_id)
        return found if found is not None and (self._grants_rules or found.is_forwarded) else None

    def keeps(self, user_name: str | None, connection: Connection | None) -> bool:
        """Return whether a client may stay: its user exists, or it needs none.

        Without a connection nobody knows how a name was proven: where certificates or tokens could
        have done it, such a session stays.
        """
        if user_name is None or not self._checks_names:
            return connection is None or self._needs_no_password(connection)
        if user_name in self._users:
            return True
        if connection is None:
            return self._has_certificates or bool(self.checks.plugins)
        proof = connection.proof
        is_vouched = proof is not None and proof.is_vouched and proof.user == user_name
        if self.checks.plugins and is_vouched:  # who stood in the file and was removed has to go
            return True
        return user_name == self._of_certificate(connection)

    def _needs_no_password(self, connection: Connection) -> bool:
        is_certified = self._of_certificate(connection) is not None
        return is_certified or self._nameless(connection) is LoginVerdict.WELCOME

    def has_rules(self) -> bool:
        """Return whether anything is restricted."""
        return bool(self._rules) or self._grants_rules

    def is_restricted(self, connection: Connection) -> bool:
        """Return whether there are rules, here or of a login that another node has checked."""
        forwarded = connection.forwarded
        return self.has_rules() or (forwarded is not None and forwarded.rules is not None)

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
        if number is not None and number < 0:
            return "the rules of its login forbid it"
        if number is not None:
            rule = self._rules[number]
            return f'rule {number + 1} of [[auth.rules]] (topic "{rule.topic}") forbids it'
        who = "a client without a user name" if user_name is None else f"user {user_name}"
        verb = "subscribe" if subscribes else "publish"
        count = len(self._rules)
        if not count:
            return "the rules of its login do not allow it"
        rules = "the only rule of" if count == 1 else f"none of the {count} rules of"
        verdict = f"does not allow {who} to" if count == 1 else f"allows {who} to"
        told = f"{rules} [[auth.rules]] {verdict} {verb} to it"
        if _is_operators(topic_filter):
            told += '; a rule that names the user and has topic "#" does'
        return told

    def _decide(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> bool:
        if not self.has_rules() and self._grant(user_name, client_id) is None:
            return True
        allowed, number = self._decision(user_name, client_id, topic_filter, subscribes=subscribes)
        if allowed and self.on_allowed is not None:
            fields = {"user": user_name, "client": client_id, "topic": topic_filter}
            action = "subscribe" if subscribes else "publish"
            self.on_allowed(fields | {"action": action, "rule": number})
        return allowed

    def _decision(
        self, user_name: str | None, client_id: str, topic_filter: str, *, subscribes: bool
    ) -> tuple[bool, int | None]:
        """Return whether it is allowed, and the index of the deciding rule, if any.

        Rules that came with the login decide first; their index is below 0.
        """
        grant = self._grant(user_name, client_id)
        numbered = [] if grant is None else [(-1, Rule.of(one)) for one in grant.rules]
        for number, rule in [*numbered, *enumerate(self._rules)]:
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


def make_access(
    configuration: Configuration, before: ConfiguredAccess | None = None
) -> ConfiguredAccess:
    """Return the access rules of a configuration; reads the password file.

    `before` are those in force until now: what they counted, and which keys they know, stays.
    """
    auth = configuration.auth
    try:
        users = read_users(auth.users) if auth.users is not None else {}
    except (OSError, UnicodeDecodeError) as problem:
        raise EnvironmentProblem(
            str(getattr(problem, "strerror", None) or problem),
            where=str(auth.users),
            todo="Create it with `nearcast passwd`.",
        ) from None
    loopback = [str(number) for number, one in enumerate(configuration.listener) if one.is_loopback]
    certified = any(one.client_ca is not None for one in configuration.listener)
    gate = before.gate if before is not None else LoginGate()
    gate.take(configuration.rates)
    return ConfiguredAccess(
        auth,
        users,
        loopback,
        has_certificates=certified,
        plugins=make_plugins(auth, before.checks.plugins if before is not None else ()),
        gate=gate,
    )
