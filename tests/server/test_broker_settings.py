"""Every setting of the broker is filled by a key, and a key that reload applies takes effect."""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from nearcast.broker import Broker, BrokerSettings, Connection, RetainedSettings, SpaceSettings
from nearcast.config import (
    AuditSection,
    AuthSection,
    CertificateSection,
    Configuration,
    HttpHookSection,
    HttpSection,
    JwtSection,
    LimitsSection,
    LogSection,
    RatesSection,
    RetainedSection,
    RuleSection,
    SpaceSection,
    all_settings,
    settings_of,
)
from nearcast.config.declaration import setting
from nearcast.config.values import Seconds
from nearcast.server import Server, set_password
from nearcast.server.broker_settings import (
    _filled,
    broker_settings,
    retained_settings,
    space_settings,
)
from nearcast.server.config_reload import AT_ONCE, CONDITIONS, merged

ROOT = Path(__file__).parent.parent.parent
LIMITS = {
    one.path: one
    for one in all_settings(Configuration)
    if one.path.startswith(("limits.", "position."))
}
OTHER = {
    **dict.fromkeys(("max_keep_alive", "session_expiry", "connect_timeout"), 60.0),
    "keep_alive": 50.0,
    "connect_packet": 1_000,
}
"""Values for keys that bound each other; the others take one less than their default, or 1."""


def changed(path: str) -> Configuration:
    """Return the defaults with another value of one key."""
    section, _, key = path.partition(".")
    default = LIMITS[path].field.default
    value = OTHER.get(key, 5 if default is None else type(default)(not default))
    if key not in OTHER and isinstance(default, int) and not isinstance(default, bool):
        value = default - 1 if default else 1
    return Configuration.model_validate({section: {key: value}})


def test_the_broker_reads_every_setting_that_it_has():
    unread = {field.name for field in fields(BrokerSettings)}
    for path in (ROOT / "src" / "nearcast").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "settings.py" and any(f".{name}" in text for name in unread):
            nodes = ast.walk(ast.parse(text))
            unread -= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not unread


def test_the_defaults_of_the_broker_are_those_of_the_configuration():
    assert broker_settings(Configuration()) == BrokerSettings()
    section = SpaceSection.model_validate(
        {"name": "a", "topics": "a", "attributes": {"x": {"low": 0, "high": 1}}}
    )
    assert space_settings(section) == SpaceSettings(space=section.to_space())
    assert retained_settings(RetainedSection(topics="a")) == RetainedSettings(topics="a")


@pytest.mark.plain  # it looks into objects of the core
def test_a_declaration_and_a_field_are_enough_to_reach_the_broker():
    class LimitsWithOneMore(LimitsSection):
        """A key more."""

        patience: Seconds = setting(2.0, "how long", fills="patience_ms")

    @dataclass(frozen=True)
    class SettingsWithOneMore(BrokerSettings):
        patience_ms: int = 2_000

    found = dict(_filled(LimitsWithOneMore(patience=0.5), SettingsWithOneMore))
    assert SettingsWithOneMore(**found).patience_ms == 500
    assert found["max_sessions"] == 100_000


@pytest.mark.parametrize(
    ("settings", "sections", "derived"),
    [
        (BrokerSettings, ["limits", "position", "auth"], set()),
        (SpaceSettings, ["space"], {"space", "paths"}),
        (RetainedSettings, ["retained"], set()),
    ],
)
def test_every_setting_of_the_broker_is_filled_by_one_key(
    settings: type[Any], sections: list[str], derived: set[str]
):
    filled = [
        name
        for one in all_settings(Configuration)
        for name in one.fills
        if one.path.partition(".")[0].removesuffix("[]") in sections
    ]
    needed = {one.name for one in fields(settings) if not one.metadata.get("internal")}

    assert len(filled) == len(set(filled))
    assert set(filled) == needed - derived


def test_every_key_of_limits_and_position_fills_a_setting():
    assert [path for path, one in LIMITS.items() if not one.fills] == []


@pytest.mark.parametrize("path", LIMITS)
def test_another_value_of_a_key_reaches_the_broker(path: str):
    found = broker_settings(changed(path))
    for name in LIMITS[path].fills:
        assert getattr(found, name) != getattr(BrokerSettings(), name), name


def numbers(thing: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield all numbers that an object of ours and the objects in it hold, by path."""
    seen = set() if seen is None else seen
    if isinstance(thing, int | float | None):
        yield path, thing
    elif type(thing).__module__.startswith("nearcast") and id(thing) not in seen:
        seen.add(id(thing))
        names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
        for name in sorted({*names, *getattr(thing, "__dict__", {})}):
            yield from numbers(getattr(thing, name, None), f"{path}.{name}", seen)


@pytest.mark.plain
@pytest.mark.parametrize("path", [one for one in LIMITS if one in AT_ONCE])
def test_a_reload_leaves_no_part_of_the_broker_with_the_old_value(path: str):
    """A part that keeps a copy of a setting must get the new one from `change_limits`."""
    new = broker_settings(changed(path))
    reloaded = Broker()
    reloaded.change_limits(new)

    assert dict(numbers(reloaded)) == dict(numbers(Broker(new)))
    assert len(dict(numbers(reloaded))) > 50


@pytest.mark.plain  # it looks into objects of the core
def test_the_check_above_finds_a_copy_that_is_not_renewed():
    new = replace(BrokerSettings(), max_topic_levels=9)  # the routes keep it: needs a restart
    reloaded = Broker()
    reloaded.change_limits(new)
    assert dict(numbers(reloaded)) != dict(numbers(Broker(new)))


class FakeLog:
    """An event log that knows nothing but its share."""

    share = 0.01

    def sample(self, share: float) -> None:
        self.share = share


Look = Callable[[Server], object]
APPLIED: dict[str, tuple[dict[str, Any], Look]] = {
    "auth.anonymous": (
        {"auth": AuthSection(anonymous="never")},
        lambda s: s._access._anonymous,
    ),
    "auth.users": ({}, lambda s: s._access._users),
    "auth.rules": (
        {"auth": AuthSection(rules=[RuleSection(user="a")])},
        lambda s: s._access.is_restricted(Connection()),
    ),
    **{
        f"rates.connections_{what}": (
            {"rates": RatesSection.model_validate({f"connections_{what}": "7/s"})},
            lambda s: sorted(s._access.gate.connections),
        )
        for what in ("address", "user", "client")
    },
    **{
        f"rates.messages_{what}": (
            {"rates": RatesSection.model_validate({f"messages_{what}": "7/s"})},
            lambda s: s._access_service.has_message_rates,
        )
        for what in ("address", "user", "client")
    },
    "rates.guesses": (
        {"rates": RatesSection(guesses=9)},
        lambda s: s._access.gate.guesses.free,
    ),
    "rates.guess_wait": (
        {"rates": RatesSection(guess_wait=9.0)},
        lambda s: s._access.gate.guesses.longest_ms,
    ),
    "auth.jwt": (
        {"auth": AuthSection(jwt=JwtSection(keys="https://127.0.0.1:1/keys"))},
        lambda s: len(s._access.checks.plugins),
    ),
    "auth.http": (
        {"auth": AuthSection(http=HttpHookSection(url="https://127.0.0.1:1/login"))},
        lambda s: len(s._access.checks.plugins),
    ),
    "auth.certificates": (
        {"auth": AuthSection(certificates=[CertificateSection(user="x")])},
        lambda s: s._access._certificates.find((("cn", "ann"),)),
    ),
    "audit.decisions": (
        {"audit": AuditSection(decisions="all")},
        lambda s: s._access_service._configuration.audit.decisions,
    ),
    "log.level": (
        {"log": LogSection(events="sampled", level="error")},
        lambda _: logging.getLogger("nearcast").level,
    ),
    "log.sample": (
        {"log": LogSection(events="sampled", sample=0.5)},
        lambda s: s._log.share,  # type: ignore[union-attr]
    ),
    "http.operators": (
        {"http": HttpSection(operators=Path(os.devnull))},
        lambda s: s.configuration.http.operators,
    ),
    "http.positions": (
        {"http": HttpSection(positions=False)},
        lambda s: s._with_pages(s._access)._shows_positions(),
    ),
    "http.hosts": ({"http": HttpSection(hosts=["a"])}, lambda s: s.configuration.http.hosts),
    "http.tiles": (
        {"http": HttpSection(tiles="https://a/{z}/{x}/{y}.png")},
        lambda s: s.configuration.http.tiles,
    ),
    "log.events": (
        {"log": LogSection(events="full")},
        lambda s: s._log.share,  # type: ignore[union-attr]
    ),
}
"""Keys that `Server.reload` applies and that fill no setting: another value, where it shows."""


def test_every_key_that_reload_applies_is_one_of_the_broker_or_looked_at_here():
    conditional = {one.path for one in all_settings(Configuration) if isinstance(one.reload, str)}
    assert conditional == set(CONDITIONS)
    filling = {path for path, one in LIMITS.items() if one.fills}
    assert {*AT_ONCE, *CONDITIONS} - filling == set(APPLIED)


@pytest.mark.parametrize("path", APPLIED)
async def test_reload_applies_the_other_keys(path: str, tmp_path: Path):
    sections, look = APPLIED[path]
    if path == "auth.users":
        set_password(tmp_path / "users", "ann", b"secret")
        sections = {"auth": AuthSection(users=tmp_path / "users")}
    old = Configuration.model_validate(
        {
            "node": {"data": str(tmp_path)},
            "durability": {"mode": "off"},
            "log": {"events": "sampled"},
        }
    )
    level = logging.getLogger("nearcast").level
    server = Server(old)
    server._log = FakeLog()  # type: ignore[assignment]
    try:
        before = look(server)
        now, later = server.reload(old.model_copy(update=sections))
        assert (now, later) == ([path], [])
        assert look(server) != before
    finally:
        logging.getLogger("nearcast").setLevel(level)


def test_a_key_that_no_reload_applies_waits_for_a_restart():
    old = Configuration()
    for one in settings_of(type(old.limits), "limits."):
        if one.path not in AT_ONCE:
            assert merged(old, changed(one.path))[1:] == ([], [one.path])
