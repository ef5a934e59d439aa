"""The page of typical mistakes: every answer on it is the one that is given."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
NEARCAST = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'nearcast'; from nearcast.cli import main; main()",
]
ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith("NEARCAST_")}
ON_BROKER = {"pub", "sub", "explain"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def captures() -> list[tuple[str, str]]:
    """Return each command of the page with the answer that stands below it."""
    pairs = [block.split("\n", 1) for block in blocks("console")]
    assert all(first.startswith("$ nearcast ") for first, _ in pairs)
    return [(first.removeprefix("$ nearcast "), answer) for first, answer in pairs]


def words_of(text: str, port: str) -> list[str]:
    command, *rest = shlex.split(text)
    given = ["-p", port] if command in ON_BROKER and "-p" not in rest else []
    return [command, *given, *rest]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The page's broker, and bob who is subscribed to it."""
    folder = tmp_path_factory.mktemp("mistakes")
    (good, bad) = blocks("toml")
    (folder / "nearcast.toml").write_text(good)
    (folder / "fleet.toml").write_text(bad)
    command = [*NEARCAST, "serve", "--port", "0"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRON, cwd=folder)
    assert served.stdout is not None
    said = "".join(iter(served.stdout.readline, "Ready. Stop with Ctrl-C.\n"))
    port = re.findall(r"Listening on tcp 127\.0\.0\.1:(\d+)", said)[0]
    (bob,) = blocks("sh")
    words = words_of(bob.strip().removeprefix("nearcast ").removesuffix(" &"), port)
    subscribed = subprocess.Popen(
        [*NEARCAST, *words], stderr=subprocess.PIPE, text=True, env=ENVIRON, cwd=folder
    )
    assert subscribed.stderr is not None
    assert subscribed.stderr.readline().startswith("Subscribed to")
    yield folder, port
    for process in (subscribed, served):
        process.terminate()
        process.wait(timeout=60)
    subscribed.stderr.close()
    served.stdout.close()


def answer_to(text: str, folder: Path, port: str) -> str:
    run = subprocess.run(
        [*NEARCAST, *words_of(text, port)],
        env=ENVIRON, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    return run.stdout


def test_there_are_ten_mistakes_at_least():
    assert len(captures()) >= 10


@pytest.mark.parametrize(("text", "answer"), captures())
def test_the_page_shows_the_answer_that_is_given(text: str, answer: str, broker: tuple[Path, str]):
    assert answer_to(text, *broker) == answer
