"""The README's commands: a broker, two subscribers, and a message that reaches the near one."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.test_docs import ENVIRON, NEARCAST, README, shell_lines

pytestmark = pytest.mark.server
WAIT_S = 120


def words(line: str, port: str = "") -> list[str]:
    """Return a line of the page as a command that runs our source, at the test's own broker."""
    return [*NEARCAST, *shlex.split(line)[1:], *(["-p", port] if port else [])]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """Start the broker as the page says, in an empty directory, on any port."""
    (line,) = shell_lines(README, "nearcast init")
    init, serve = line.split(" && ")
    subprocess.run(words(init), cwd=tmp_path, env=ENVIRON, check=True, timeout=WAIT_S)
    broker = subprocess.Popen(
        [*words(serve), "--port", "0"], stdout=subprocess.PIPE, text=True, env=ENVIRON, cwd=tmp_path
    )
    assert broker.stdout is not None
    said = "".join(iter(broker.stdout.readline, "Ready. Stop with Ctrl-C.\n"))
    found = re.search(r"Listening on tcp 127\.0\.0\.1:(\d+)", said)
    assert found, said
    yield found[1]
    broker.terminate()
    broker.stdout.close()
    assert broker.wait(timeout=WAIT_S) == 0


def test_three_commands_show_a_message_that_reaches_only_who_is_near(port: str):
    near, far = shell_lines(README, "nearcast sub")
    (publish,) = shell_lines(README, "nearcast pub")
    listeners = [
        subprocess.Popen(
            [*words(line, port), "-C", "1", "-W", str(WAIT_S)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON,
        )
        for line in (near, far)
    ]  # fmt: skip
    for one in listeners:
        assert one.stderr is not None
        assert one.stderr.readline().startswith("Subscribed to shops/#")
    place = re.search(r"--position (\S+),(\S+)", far)
    assert place
    mark = re.sub(r'"lon".*}', f'"lon": {place[1]}, "lat": {place[2]}}}', publish)
    for line in (publish, mark):  # what reaches Ben first is the mark, at his own place
        subprocess.run(words(line, port), env=ENVIRON, check=True, timeout=WAIT_S)
    ana, ben = (one.communicate(timeout=WAIT_S)[0] for one in listeners)
    assert "-122.4060" in ana
    assert place[1] in ben
    assert "-122.4060" not in ben


def test_the_first_screen_has_no_table_of_what_works():
    assert "State of things" not in README
    assert "does not yet" not in README
    assert README.index("nearcast.svg") < README.index("nearcast sub") < 2_500
