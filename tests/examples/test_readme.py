"""The README's commands: a broker, two subscribers, and a message that reaches the near one."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import nearcast, served, start_nearcast
from tests.support.doc_pages import README, shell_lines

pytestmark = pytest.mark.server
WAIT_S = 120


def words(line: str, port: str = "") -> list[str]:
    """Return the arguments of a line of the page, for the test's own broker."""
    return [*shlex.split(line)[1:], *(["-p", port] if port else [])]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """Start the broker as the page says, in an empty directory, on any port."""
    (line,) = shell_lines(README, "nearcast init")
    init, serve = line.split(" && ")
    assert nearcast(*words(init), cwd=tmp_path).returncode == 0
    assert words(serve)[0] == "serve"
    with served(*words(serve)[1:], "--port", "0", cwd=tmp_path) as ports:
        yield str(ports["tcp"])


def test_three_commands_show_a_message_that_reaches_only_who_is_near(port: str):
    near, far = shell_lines(README, "nearcast sub")
    (publish,) = shell_lines(README, "nearcast pub")
    listeners = [
        start_nearcast(*words(line, port), "-C", "1", "-W", str(WAIT_S)) for line in (near, far)
    ]
    for one in listeners:
        assert one.stderr is not None
        assert one.stderr.readline().startswith("Subscribed to shops/#")
    place = re.search(r"--position (\S+),(\S+)", far)
    assert place
    mark = re.sub(r'"lon".*}', f'"lon": {place[1]}, "lat": {place[2]}}}', publish)
    for line in (publish, mark):  # what reaches Ben first is the mark, at his own place
        assert nearcast(*words(line, port)).returncode == 0
    ana, ben = (one.communicate(timeout=WAIT_S)[0] for one in listeners)
    assert "-122.4060" in ana
    assert place[1] in ben
    assert "-122.4060" not in ben


def test_the_first_screen_has_no_table_of_what_works():
    assert "State of things" not in README
    assert "does not yet" not in README
    assert README.index("docs/pictures/") < README.index("nearcast sub") < 2_500
