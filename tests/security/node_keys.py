"""Keys of nodes and operators, and two real nodes that have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.real_cluster import RealCluster

from nearcast.config import NetworkSection
from nearcast.server.cluster.cluster_keys import ClusterKeys, Signer, keys_of, new_key

NAMES = ("node a", "node b", "operator alice", "node eve")


def write_keys(folder: Path) -> None:
    """Write keys of two nodes and an operator, and of a stranger who is in `all.txt` only."""
    lines = []
    for name in NAMES:
        kind, _, who = name.partition(" ")
        lines.append(new_key(folder / f"{name}.key", Signer(kind, who)))  # type: ignore[arg-type]
    (folder / "keys.txt").write_text("# of all\n" + "\n".join(lines[:3]) + "\n")
    (folder / "all.txt").write_text("\n".join(lines) + "\n")


def section(folder: Path, name: str = "node a", **more: object) -> NetworkSection:
    """Return the network's settings for the owner of a key."""
    known = "all.txt" if name == "node eve" else "keys.txt"
    files = {"node_key": folder / f"{name}.key", "node_keys": folder / known}
    return NetworkSection.model_validate({**files, **more})


def keys(folder: Path, name: str) -> ClusterKeys:
    """Return what the owner of a key uses."""
    found = keys_of(section(folder, name))
    assert found is not None
    return found


@contextmanager
def two_nodes(directory: Path, keys: Path, more: str = "") -> Iterator[RealCluster]:
    """Run the nodes a and b with their keys and these lines in the section `[network]`."""
    with RealCluster(directory) as made:
        for name in ("a", "b"):
            config = directory / f"{name}.toml"
            lines = (f'node_key = "{keys}/node {name}.key"', f'node_keys = "{keys}/keys.txt"')
            config.write_text("\n".join(["[network]", *lines, more, ""]))
            made.start(name, config=config)
        made.join("a", "b")
        yield made
