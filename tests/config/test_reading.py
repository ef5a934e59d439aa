"""A configuration is read, overridden, or answered with file, key and line."""

from pathlib import Path

import pytest

from nearcast.config import Configuration, example, load, read, read_file
from nearcast.model import ConfigurationError


def problems_of(text: str, environ: dict[str, str] | None = None) -> list[str]:
    reading = read(text, environ or {}, file="f.toml")
    assert reading.configuration is None
    return [str(problem) for problem in reading.problems]


def configuration_of(text: str, environ: dict[str, str] | None = None) -> Configuration:
    reading = read(text, environ or {})
    assert reading.problems == ()
    assert reading.configuration is not None
    return reading.configuration


def test_an_empty_text_gives_the_defaults_which_listen_on_loopback_only():
    configuration = configuration_of("")
    (listener,) = configuration.listener
    assert (listener.kind, listener.port, listener.is_loopback) == ("tcp", 1883, True)
    assert configuration.auth.anonymous == "loopback"


def test_the_example_is_right_and_says_the_defaults():
    shown = configuration_of(example())
    plain = configuration_of("")
    assert shown.model_copy(update={"space": []}) == plain
    (space,) = shown.space
    assert space.to_space().name == "shops"


def test_sizes_and_durations_are_written_as_people_write_them():
    limits = configuration_of('[limits]\npacket = "2MiB"\nconnect_timeout = "250ms"\n').limits
    assert limits.packet == 2 * 1024 * 1024
    assert limits.connect_timeout == 0.25
    assert configuration_of('[network]\nskew = "20 ms"\n').network.skew == 0.02


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[limits]\nconections = 5\n",
            ["f.toml:2: limits.conections: found unknown key", "Did you mean 'connections'?"],
        ),
        (
            '[[space]]\nname = "a"\ntopics = "a"\n[space.attributes.x]\nlow = 0\nhihg = 1\n',
            ["f.toml:6: space[0].attributes.x.hihg: found unknown key", "Did you mean 'high'?"],
        ),
        (
            "[[listener]]\nport = 99999\n",
            ["f.toml:2: listener[0].port: found 99999; expected a number of at most 65535"],
        ),
        (
            '[[listener]]\nkind = "udp"\n',
            ["f.toml:2: listener[0].kind: found 'udp'", "'tcp', 'tls', 'ws' or 'wss'"],
        ),
        ('[[listener]]\nport = "1883"\n', ["found '1883'; expected a whole number"]),
        (
            '\n[[listener]]\nkind = "tls"\n',
            ["f.toml:2: listener[0]: a listener of kind 'tls' needs both"],
        ),
        (
            '[[space]]\nname = "a"\ntopics = "a/#"\n',
            ["f.toml:1: space[0].attributes: found no value"],
        ),
        ("[limits\n", ["f.toml:1:8: this is not TOML"]),
        ('[limits]\npacket = "many"\n', ["f.toml:2: limits.packet", "such as '256KiB'"]),
        ('[limits]\nconnect_timeout = "soon"\n', ["f.toml:2: limits.connect_timeout"]),
        ("[limits]\nconnect_timeout = nan\n", ["f.toml:2: limits.connect_timeout: found nan"]),
        ("[limits]\nconnections = 0\n", ["expected a number of at least 1"]),
        (
            '[node]\nname = "my node"\n',
            ["f.toml:2: node.name: found 'my node'; expected letters, digits, '.', '_' and '-'"],
        ),
        ('[node]\nname = ""\n', ["found ''; expected text that is not empty"]),
        ('[network]\nname = "a.b"\n', ["found 'a.b'; expected letters, digits, '_' and '-' only"]),
        (
            '[network]\njoin = ["10.0.0.1:4222"]\n',
            ["network.join[0]: found '10.0.0.1:4222'; expected an address such as nats://10"],
        ),
        ("limits = 5\n", ["f.toml:1: limits: found 5; expected a table"]),
        ('[network]\nskew = "1 min"\n', ["f.toml:2: network.skew", "at most 10"]),
        ('[network]\nskew = "wide"\n', ["f.toml:2: network.skew: found 'wide'"]),
    ],
)
def test_a_mistake_is_answered_with_file_line_key_and_what_was_expected(text, expected):
    (problem,) = problems_of(text)
    for part in expected:
        assert part in problem


SPACE = """\
[[space]]
name = "city"
topics = "city/#"
{extra}
[space.attributes]
price = {price}
lon = {{ low = -180, high = 180 }}
"""


@pytest.mark.parametrize(
    ("extra", "price", "expected"),
    [
        ("", "{ low = 10, high = 0 }", "'low' (10) must lie below 'high' (0)"),
        ("", "{ low = 5, high = 5 }", "'low' (5) must lie below 'high' (5)"),
        ("", "{ low = 10 }", "either 'low' and 'high', or 'categories'"),
        ("", '{ categories = ["a", "a"] }', "categories stand twice: a"),
        ("", "{ categories = [] }", "no categories given"),
        ("", "{ low = -inf, high = 0 }", "a finite number"),
        ('longitude = "lon"', "{ low = 0, high = 1 }", "come together"),
        ('longitude = "lon"\nlatitude = "lat"', "{ low = 0, high = 1 }", "none of the attributes"),
        ('required = ["colour"]', "{ low = 0, high = 1 }", "none of the attributes"),
    ],
)
def test_a_space_that_cannot_be_is_refused(extra, price, expected):
    (problem,) = problems_of(SPACE.format(extra=extra, price=price))
    assert expected in problem


def test_all_problems_are_told_at_once_in_the_order_of_lines():
    problems = problems_of("[limits]\nconnections = 0\ncolour = 1\n[node]\nname = ''\n")
    assert [p.split(":")[1] for p in problems] == ["2", "3", "5"]


def test_the_environment_overrides_the_file():
    environ = {"NEARCAST_LIMITS__CONNECTIONS": "7", "NEARCAST_LISTENER__0__HOST": "::1"}
    configuration = configuration_of("[[listener]]\nport = 5\n", environ)
    assert configuration.limits.connections == 7
    assert (configuration.listener[0].host, configuration.listener[0].port) == ("::1", 5)


def test_the_environment_can_begin_a_list():
    configuration = configuration_of("", {"NEARCAST_LISTENER__0__PORT": "1999"})
    assert configuration.listener[0].port == 1999


def test_other_variables_of_ours_are_left_alone():
    configuration_of("", {"NEARCAST_CONFIG": "x.toml", "HOME": "/"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NEARCAST_LIMITS__CONNECTIONS", "many", "environment NEARCAST_LIMITS__CONNECTIONS"),
        ("NEARCAST_LIMITS__COLOUR", "1", "unknown key 'colour'"),
        ("NEARCAST_LISTENER__3__PORT", "1", "no such place"),
        ("NEARCAST_NODE__NAME__X", "1", "no such place"),
    ],
)
def test_a_bad_variable_is_named(name, value, expected):
    (problem,) = problems_of("[node]\nname = 'a'\n", {name: value})
    assert expected in problem
    assert name in problem


def test_a_file_that_is_not_there_or_not_utf8_is_a_problem_not_a_crash(tmp_path: Path):
    missing = read_file(tmp_path / "no.toml", {})
    assert "nearcast init" in str(missing.problems[0])
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    assert "not UTF-8" in str(read_file(tmp_path / "latin.toml", {}).problems[0])
    assert read_file(tmp_path, {}).configuration is None


def test_loading_raises_the_first_problem_and_counts_the_rest(tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text("[limits]\nconnections = 0\ncolour = 1\n")
    with pytest.raises(ConfigurationError, match="1 more: see 'nearcast config check"):
        load(path, {})
    assert load(None, {}) == configuration_of("")


SPACES = """
[[space]]
name = "{name}"
topics = "{topics}"
{more}
[space.attributes]
price = {{ low = 0, high = 9, path = "offer.price" }}
"""


def test_a_space_has_defaults_and_paths_of_its_own() -> None:
    more = 'top = 3\nrank = "weight"\nlifetime = "250ms"\noffline = "skipped"\norder = "causal"\n'
    reading = read(SPACES.format(name="s", topics="s/#", more=more), {})
    assert reading.configuration is not None
    (space,) = reading.configuration.space
    assert (space.top, space.rank, space.lifetime, space.offline) == (3, "weight", 0.25, "skipped")
    assert (space.hysteresis, space.positions, space.retained) == (0.1, "private", None)
    assert space.paths() == {"price": ("offer", "price")}
    assert reading.configuration.position.connect
    assert not reading.configuration.position.publish


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("top = 0", "space[0].top"),
        ('rank = "best"', "space[0].rank"),
        ('lifetime = "0s"', "space[0].lifetime"),
        ('lifetime = "-5ms"', "space[0].lifetime"),
        ("lifetime = -5", "space[0].lifetime"),
        ("hysteresis = -0.5", "space[0].hysteresis"),
        ('positions = "secret"', "space[0].positions"),
        ('offline = "maybe"', "space[0].offline"),
    ],
)
def test_a_bad_default_of_a_space_is_named(more: str, key: str) -> None:
    reading = read(SPACES.format(name="s", topics="s/#", more=more), {})
    assert key in str(reading.problems[0])


def test_two_spaces_may_not_share_a_topic() -> None:
    text = SPACES.format(name="a", topics="s/#", more="")
    text += SPACES.format(name="b", topics="+/x", more="")
    assert "share topics" in str(read(text, {}).problems[0])


def test_an_empty_step_of_a_path_is_refused() -> None:
    text = SPACES.format(name="a", topics="s/#", more="").replace("offer.price", "offer..price")
    assert "place.lon" in str(read(text, {}).problems[0])
