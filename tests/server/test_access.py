"""Passwords and rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.broker import Connection, LoginVerdict
from nearcast.config import AuthSection, RuleSection
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.mqtt import Connect
from nearcast.server import hash_password, is_password, read_users, set_password
from nearcast.server.auth.rules import ConfiguredAccess


def test_a_password_is_known_by_its_hash_only() -> None:
    stored = hash_password(b"secret")

    assert b"secret" not in stored.encode()
    assert is_password(b"secret", stored)
    assert not is_password(b"Secret", stored)
    assert hash_password(b"secret") != stored


def test_a_password_file_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_password(path, "ann", b"one")
    set_password(path, "bob", b"two")
    set_password(path, "ann", b"three")
    set_password(path, "bob", None)

    users = read_users(path)
    assert list(users) == ["ann"]
    assert is_password(b"three", users["ann"])
    assert path.stat().st_mode & 0o077 == 0


def test_a_bad_password_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# a comment\n\nann:plaintext\n")

    with pytest.raises(FileFormatError, match="line 3"):
        read_users(path)


@pytest.mark.parametrize("name", ["", "a:b", "a\nb"])
def test_a_name_that_breaks_the_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MisuseError):
        set_password(tmp_path / "users", name, b"x")


USERS = {"ann": hash_password(b"pw", b"salt")}
local, remote = Connection(listener="0"), Connection(listener="1")


@pytest.mark.parametrize(
    ("anonymous", "from_local", "from_remote"),
    [
        ("loopback", LoginVerdict.WELCOME, LoginVerdict.FORBIDDEN),
        ("always", LoginVerdict.WELCOME, LoginVerdict.WELCOME),
        ("never", LoginVerdict.FORBIDDEN, LoginVerdict.FORBIDDEN),
    ],
)
def test_the_nameless_are_welcome_where_the_setting_says(
    anonymous: str, from_local: LoginVerdict, from_remote: LoginVerdict
) -> None:
    access = ConfiguredAccess(AuthSection(anonymous=anonymous), {}, ["0"])  # type: ignore[arg-type]

    assert access.authenticate(Connect("c"), local) is from_local
    assert access.authenticate(Connect("c"), remote) is from_remote


def test_a_name_needs_its_password() -> None:
    access = ConfiguredAccess(AuthSection(), USERS, ["0"])
    good = Connect("c", user_name="ann", password=b"pw")

    assert access.authenticate(good, local) is LoginVerdict.LATER
    assert access.check_password(good) is LoginVerdict.WELCOME
    assert access.identity(good, local) == "ann"
    wrong = Connect("c", user_name="ann", password=b"no")
    assert access.check_password(wrong) is LoginVerdict.WRONG_PASSWORD
    unknown = Connect("c", user_name="eve", password=b"pw")
    assert access.authenticate(unknown, local) is LoginVerdict.LATER
    assert access.check_password(unknown) is LoginVerdict.WRONG_PASSWORD
    assert access.authenticate(Connect("c", user_name="ann"), local) is LoginVerdict.WRONG_PASSWORD


def test_a_name_that_nobody_has_checked_counts_for_nothing() -> None:
    access = ConfiguredAccess(AuthSection(), {}, ["0"])

    assert access.authenticate(Connect("c", user_name="root"), local) is LoginVerdict.WELCOME
    assert access.identity(Connect("c", user_name="root"), local) is None


def test_a_certificate_is_a_name() -> None:
    access = ConfiguredAccess(AuthSection(anonymous="never"), {}, [])
    shown = Connection(listener="1")
    shown.certificate_name = "ann"

    assert access.authenticate(Connect("c"), shown) is LoginVerdict.WELCOME
    assert access.identity(Connect("c"), shown) == "ann"


RULES = [
    RuleSection(topic="secret/#", allow=False),
    RuleSection(user="ann", topic="#"),
    RuleSection(topic="users/%u/#"),
    RuleSection(topic="clients/%c", action="publish"),
    RuleSection(topic="news/+", action="subscribe"),
]


@pytest.mark.parametrize(
    ("user", "topic", "publishes", "subscribes"),
    [
        ("ann", "any/where", True, True),
        ("ann", "secret/a", False, False),
        ("bob", "users/bob/x", True, True),
        ("bob", "users/ann/x", False, False),
        ("bob", "clients/c1", True, False),
        ("bob", "news/today", False, True),
        (None, "users/None/x", False, False),
        ("a/b", "users/a/b/x", False, False),
        ("+", "users/x/y", False, False),
    ],
)
def test_the_first_rule_that_fits_decides(
    user: str | None, topic: str, publishes: bool, subscribes: bool
) -> None:
    access = ConfiguredAccess(AuthSection(rules=RULES), USERS, [])

    assert access.is_restricted(Connection())
    assert access.may_publish(user, "c1", topic) is publishes
    assert access.may_subscribe(user, "c1", topic) is subscribes


def test_a_filter_that_reaches_into_the_forbidden_is_refused() -> None:
    access = ConfiguredAccess(AuthSection(rules=RULES), USERS, [])

    assert not access.may_subscribe("ann", "c", "#")
    assert not access.may_subscribe("ann", "c", "+/a")
    assert access.may_subscribe("ann", "c", "open/#")


def test_a_client_may_say_where_it_is_unless_a_rule_forbids_it() -> None:
    access = ConfiguredAccess(AuthSection(rules=RULES), USERS, [])
    assert access.may_publish("bob", "c", "$position")
    assert access.may_publish(None, "c", "$position")
    assert not access.may_subscribe("ann", "c", "$position/bob")

    mute = [RuleSection(user="bob", topic="$position", allow=False), *RULES]
    access = ConfiguredAccess(AuthSection(rules=mute), USERS, [])
    assert not access.may_publish("bob", "c", "$position")
    assert access.may_publish("ann", "c", "$position")


def test_who_may_do_everything_by_name_may_look_at_the_broker_itself() -> None:
    access = ConfiguredAccess(AuthSection(rules=RULES), USERS, [])
    assert access.may_subscribe("ann", "c", "$SYS/#")
    assert access.may_publish("ann", "c", "$nearcast/explain")
    assert not access.may_subscribe("bob", "c", "$SYS/#")
    assert not access.may_publish("bob", "c", "$nearcast/explain")

    for_all = ConfiguredAccess(AuthSection(rules=[RuleSection(topic="#")]), USERS, [])
    assert not for_all.may_subscribe("bob", "c", "$SYS/#")
    named = [RuleSection(user="ann", topic="$SYS/#", allow=False), *RULES]
    assert not ConfiguredAccess(AuthSection(rules=named), USERS, []).may_subscribe(
        "ann", "c", "$SYS/broker/uptime"
    )


def test_a_refusal_says_which_rule_or_the_lack_of_one_decided() -> None:
    access = ConfiguredAccess(AuthSection(rules=RULES), USERS, [])
    told = access.refusal("ann", "c", "secret/a", subscribes=False)
    assert told == 'rule 1 of [[auth.rules]] (topic "secret/#") forbids it'
    told = access.refusal("bob", "c", "else", subscribes=True)
    assert told == "none of the 5 rules of [[auth.rules]] allows user bob to subscribe to it"
    one = ConfiguredAccess(AuthSection(rules=RULES[:1]), USERS, [])
    assert one.refusal(None, "c", "$SYS/#", subscribes=True) == (
        "the only rule of [[auth.rules]] does not allow a client without a user name to subscribe "
        'to it; a rule that names the user and has topic "#" does'
    )


def test_without_rules_everything_is_allowed() -> None:
    access = ConfiguredAccess(AuthSection(), {}, [])

    assert not access.is_restricted(Connection())
    assert access.may_publish(None, "c", "x")
    assert access.may_subscribe(None, "c", "#")
