"""The page on selective subscriptions: its program and its shell commands do what it says."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.commands import served
from tests.support.doc_pages import PAGE, blocks, shell_lines

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a broker with the configuration of the page."""
    directory = tmp_path_factory.mktemp("page")
    (directory / "nearcast.toml").write_text(blocks("toml")[0])
    with served("--config", "nearcast.toml", "--port", "0", cwd=directory) as ports:
        yield str(ports["tcp"])


def test_the_program_prints_what_the_page_says(port: str):
    program = next(text for text in blocks("python") if "aiomqtt" in text)
    promised = PAGE.split(program)[1].split("```")[2].strip()  # the block behind it
    run = subprocess.run(
        [sys.executable, "-c", program.replace("1883", port)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.stdout.strip() == promised, run.stderr


@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Mosquitto is not installed (make setup)"
)
def test_any_client_can_do_it(port: str):
    (listen,) = shell_lines(PAGE, "mosquitto_sub")
    sends = shell_lines(PAGE, "mosquitto_pub")
    assert len(sends) == 3
    command = f"exec stdbuf -oL {listen} -p {port} -C 2 -W 200 -d"  # line by line
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        while "Subscribed" not in listener.stdout.readline():
            pass
        last = sends[0].replace("3.5", "4.5")  # to see that nothing else came before it
        for line in [*sends, last]:
            subprocess.run(f"{line} -p {port} -q 1", shell=True, check=True, timeout=60)
        heard = [line for line in listener.stdout.read().splitlines() if line.startswith("shops/")]
    assert [line.split()[0] for line in heard] == ["shops/bakery", "shops/bakery"]
    assert "-122.4060" in heard[0]
    assert "4.5" in heard[1]
