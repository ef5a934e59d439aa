"""The command line, run as people run it: as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import nearcast

from nearcast import __version__
from nearcast.cli.serve import found_config
from nearcast.model.errors import MisuseError

COMMANDS = (
    "serve",
    "pub",
    "sub",
    "status",
    "passwd",
    "init",
    "config check",
    "demo",
    "bench match",
    "pipeline ingest",
    "pipeline regions",
    "pipeline match",
    "pipeline stream",
    "pipeline plan",
    "pipeline histogram",
    "pipeline train",
    "pipeline run",
    "pipeline audit",
    "pipeline whatif",
    "reproduce",
    "up",
    "nodes",
    "explain",
    "plan show",
    "plan diff",
    "policy show",
    "policy explain",
)


def test_help_lists_the_commands(tmp_path: Path):
    run = nearcast("--help", cwd=tmp_path)
    assert run.returncode == 0
    for command in COMMANDS:
        assert command.split()[0] in run.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, tmp_path: Path):
    run = nearcast(*command.split(), "--help", cwd=tmp_path)
    assert run.returncode == 0
    assert "Example: nearcast" in run.stdout


def test_help_needs_neither_spark_nor_a_compiler(tmp_path: Path):
    code = (
        "import sys; from nearcast.cli import app; "
        "heavy = {'pyspark', 'numba', 'shapely', 'pandas', 'pyarrow', 'numpy'}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_version(tmp_path: Path):
    assert nearcast("--version", cwd=tmp_path).stdout == f"nearcast {__version__}\n"


def test_init_writes_a_file_that_check_finds_right(tmp_path: Path):
    assert nearcast("init", cwd=tmp_path).returncode == 0
    run = nearcast("config", "check", cwd=tmp_path)
    assert run.returncode == 0
    assert "nearcast.toml is valid: listens on tcp 127.0.0.1:1883; 1 space(s)." in run.stdout


def test_init_does_not_overwrite_unless_told(tmp_path: Path):
    (tmp_path / "nearcast.toml").write_text("# mine\n")
    run = nearcast("init", cwd=tmp_path)
    assert run.returncode == 2
    assert "error: nearcast.toml: the file already exists" in run.stderr
    assert (tmp_path / "nearcast.toml").read_text() == "# mine\n"
    assert nearcast("init", "--force", cwd=tmp_path).returncode == 0


def test_check_names_file_line_and_key(tmp_path: Path):
    (tmp_path / "bad.toml").write_text("[limits]\nconections = 5\n")
    run = nearcast("config", "check", "bad.toml", cwd=tmp_path)
    assert run.returncode == 1
    assert "bad.toml:2: limits.conections" in run.stdout
    assert "Did you mean 'connections'?" in run.stdout


def test_check_looks_at_the_files_that_are_named(tmp_path: Path):
    (tmp_path / "users.txt").write_text("alice:secret\n")
    (tmp_path / "bad.toml").write_text(
        '[auth]\nusers = "users.txt"\n'
        '[[listener]]\nkind = "tls"\ncertificate = "no.pem"\nkey = "no.key"\n'
        '[network]\njoin = "nats://127.0.0.1:4222"\ncredentials = "no.creds"\n'
    )
    run = nearcast("config", "check", "bad.toml", cwd=tmp_path)
    assert run.returncode == 1
    assert "auth.users: users.txt: found line 1; expected name:scrypt$" in run.stdout
    assert "listener[0].certificate: no.pem: No such file or directory" in run.stdout
    assert "network.credentials: no.creds: No such file or directory" in run.stdout
    assert "4 problem(s) in bad.toml." in run.stdout


def test_check_takes_the_environment_into_account(tmp_path: Path):
    nearcast("init", cwd=tmp_path)
    run = nearcast("config", "check", cwd=tmp_path, NEARCAST_LIMITS__CONNECTIONS="no")
    assert run.returncode == 1
    assert "environment NEARCAST_LIMITS__CONNECTIONS" in run.stdout


def test_check_speaks_json(tmp_path: Path):
    (tmp_path / "bad.toml").write_text("[limits]\nconnections = 0\n")
    run = nearcast("config", "check", "bad.toml", "--json", cwd=tmp_path)
    answer = json.loads(run.stdout)
    assert (run.returncode, answer["ok"], answer["problems"][0]["line"]) == (1, False, 2)


def test_a_mistake_with_json_is_answered_in_json(tmp_path: Path):
    run = nearcast("config", "check", "missing.toml", "--json", cwd=tmp_path)
    assert "no such file" in json.loads(run.stdout)["problems"][0]["message"]


def test_an_unknown_command_is_the_callers_mistake(tmp_path: Path):
    run = nearcast("fly", cwd=tmp_path)
    assert run.returncode == 2
    assert "No such command 'fly'" in run.stderr


def test_shell_completion_is_offered(tmp_path: Path):
    asked = {"_NEARCAST_COMPLETE": "complete_bash", "COMP_WORDS": "nearcast con", "COMP_CWORD": "1"}
    script = Path(sys.executable).with_name("nearcast")
    run = subprocess.run(
        [script], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert "config" in run.stdout.split()


def test_the_file_of_this_directory_is_read_unless_another_or_none_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert found_config(None, no_config=False) is None
    Path("nearcast.toml").touch()
    assert found_config(None, no_config=False) == Path("nearcast.toml")
    assert found_config(Path("fleet.toml"), no_config=False) == Path("fleet.toml")
    assert found_config(None, no_config=True) is None
    with pytest.raises(MisuseError, match="--config and --no-config"):
        found_config(Path("fleet.toml"), no_config=True)
