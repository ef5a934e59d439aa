"""`config check` looks at every file that a configuration names."""

from pathlib import Path
from typing import Any

import pytest

from nearcast.config import Configuration
from nearcast.server.file_checks import file_problems


def problems(**sections: Any) -> list[str]:
    return [str(one) for one in file_problems(Configuration.model_validate(sections))]


def listener(certificates: Path, **other: Path) -> dict[str, Any]:
    files = {"certificate": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
    paths = {name: str(certificates / file) for name, file in files.items()}
    return {"kind": "tls", "port": 0, **paths, **{key: str(path) for key, path in other.items()}}


def test_files_that_can_be_used_are_no_problem(certificates: Path) -> None:
    network = {"join": "tls://127.0.0.1:4222", "authority": str(certificates / "ca.pem")}
    assert problems(listener=[listener(certificates)], network=network) == []


@pytest.mark.parametrize("name", ["certificate", "key", "client_ca"])
def test_a_file_of_a_listener_that_is_missing_is_named(
    certificates: Path, tmp_path: Path, name: str
) -> None:
    missing = tmp_path / "no.pem"
    (told,) = problems(listener=[listener(certificates, **{name: missing})])
    assert told == f"listener[0].{name}: {missing}: No such file or directory"


def test_a_key_of_another_certificate_is_told(certificates: Path) -> None:
    other = listener(certificates, key=certificates / "ann.key")
    (told,) = problems(listener=[{"port": 0}, other])
    assert told.startswith("listener[1]: ")


def test_files_of_a_network_are_looked_at(tmp_path: Path) -> None:
    no_pem = tmp_path / "ca.pem"
    no_pem.write_text("no certificate")
    network = {"join": "tls://127.0.0.1:4222", "authority": str(no_pem)}
    missing = {name: str(tmp_path / name) for name in ("credentials", "histograms")}
    encrypted, *others = problems(network=network | missing)
    assert f"network.authority, {no_pem}: found a certificate or key" in encrypted
    assert others == [
        f"network.{name}: {path}: No such file or directory" for name, path in missing.items()
    ]


def test_a_directory_of_histograms_that_is_missing_is_named(tmp_path: Path) -> None:
    (told,) = problems(peer={"histograms": str(tmp_path / "city")})
    assert told == f"peer.histograms: {tmp_path / 'city'}: No such file or directory"
