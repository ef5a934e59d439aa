"""The page of typical mistakes: every answer on it is the one that is given."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import served, start_nearcast

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
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
    with served("--port", "0", cwd=folder) as ports:
        port = str(ports["tcp"])
        (bob,) = blocks("sh")
        words = words_of(bob.strip().removeprefix("nearcast ").removesuffix(" &"), port)
        with start_nearcast(*words, cwd=folder, stdout=None) as subscribed:
            assert subscribed.stderr is not None
            assert subscribed.stderr.readline().startswith("Subscribed to")
            yield folder, port
            subscribed.terminate()


def answer_to(text: str, folder: Path, port: str) -> str:
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with start_nearcast(*words_of(text, port), cwd=folder, **options) as run:
        return run.communicate(timeout=240)[0]


def test_there_are_ten_mistakes_at_least():
    assert len(captures()) >= 10


@pytest.mark.parametrize(("text", "answer"), captures())
def test_the_page_shows_the_answer_that_is_given(text: str, answer: str, broker: tuple[Path, str]):
    assert answer_to(text, *broker) == answer
