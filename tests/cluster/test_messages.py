"""A message between nodes is declared once; what is added by half is found here.

Its golden frame is compared in `tests/golden/test_unchanged.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any, Union

import msgspec
import pytest
from tests.support.simulated_city import SimulatedCity

from nearcast.broker import Broker
from nearcast.cluster import Cluster, messages
from nearcast.cluster import part as parts
from nearcast.cluster.messages import (
    MESSAGES,
    SPEAKS,
    InterestKnown,
    PeerMessage,
    PeerVersion,
    decode,
    encode,
)
from nearcast.cluster.part import ClusterPart, callbacks_of, handlers_of, handles
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import TOLD, PeerRegistry
from nearcast.model.errors import MisuseError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "network.md"
RECIPES = ROOT / "CONTRIBUTING.md"


def a_cluster() -> Cluster:
    return Cluster("n", Broker(), random=Random(1))


def first_line(thing: Any) -> str:
    return str(thing.__doc__).partition("\n")[0].rstrip(".")


def table() -> list[str]:
    """Return the rows that the page has of all messages."""
    found = handlers_of(a_cluster().parts)
    return [
        f"| `{kind.__struct_config__.tag}` | `{kind.__name__}` | {int(kind.since)} "
        f"| `{type(found[kind].__self__).__module__.rpartition('.')[2]}` "  # type: ignore[attr-defined]
        f"| {first_line(kind)} |"
        for kind in MESSAGES
    ]


def rows_of(page: Path, heading: str) -> list[str]:
    section = page.read_text(encoding="utf-8").partition(f"{heading}\n")[2]
    lines = section.partition("\n#")[0].splitlines()
    return [line for line in lines if line.startswith("| ")][1:]


def test_the_page_has_a_row_for_each_message():
    expected = table()
    assert rows_of(PAGE, "### Messages between nodes") == expected, "\n".join(expected)


def test_each_message_has_a_code_of_one_letter_and_a_version_that_this_node_speaks():
    codes = [kind.__struct_config__.tag for kind in MESSAGES]
    assert len(set(codes)) == len(codes) >= 13
    assert all(isinstance(code, str) and len(code) == 1 for code in codes)
    assert all(SPEAKS[0] <= kind.since <= SPEAKS[1] for kind in MESSAGES)
    assert all(kind.__doc__ != PeerMessage.__doc__ for kind in MESSAGES)


def test_a_message_without_a_handler_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    class Unheard(PeerMessage, frozen=True, tag="?"):
        """Nobody handles this."""

    monkeypatch.setattr(parts, "MESSAGES", (*MESSAGES, Unheard))
    with pytest.raises(MisuseError, match="no handler of Unheard"):
        a_cluster()


def test_two_handlers_of_a_message_are_refused():
    class Second(ClusterPart):
        @handles(InterestKnown)
        def known(self, peer: PeerNode, message: InterestKnown) -> None:
            """Handle what another part handles."""

    with pytest.raises(MisuseError, match="two handlers of InterestKnown"):
        handlers_of([*a_cluster().parts, Second()])


def test_a_message_is_handled_by_the_part_that_names_it():
    found = {
        kind.__name__: type(handler.__self__).__name__  # type: ignore[attr-defined]
        for kind, handler in handlers_of(a_cluster().parts).items()
    }
    assert found["Interest"] == "SubscriptionSync"
    assert found["Retained"] == "RetainedSync"
    assert found["TunnelOpened"] == "SessionRelay"


def test_only_methods_that_a_part_overrides_are_called():
    class Counting(ClusterPart):
        def settle(self) -> None:
            """Do something."""

    one = Counting()
    assert callbacks_of([ClusterPart(), one], "settle") == (one.settle,)
    assert callbacks_of([one], "end_batch") == ()


def test_a_message_of_a_later_version_is_not_sent_to_an_older_node(
    monkeypatch: pytest.MonkeyPatch,
):
    city = SimulatedCity(3)
    mesh = city.nodes["n0"].mesh
    mesh.peers["n1"].version = SPEAKS[1] - 1
    sent: list[tuple[str, bytes]] = []

    def note(
        _registry: PeerRegistry, peer: PeerNode, _kind: bytes, content: bytes, **_: bool
    ) -> None:
        sent.append((peer.name, content))

    class Later(PeerMessage, frozen=True, tag="?"):
        """Says something that only new nodes understand."""

        since = PeerVersion(SPEAKS[1])
        number: int

    monkeypatch.setattr(PeerRegistry, "send", note)
    later = Later(5)
    mesh.neighbours.tell_all(later)
    for name in ("n1", "n2"):
        mesh.neighbours.tell_named(name, later)
    assert sent == [("n2", encode(later))] * 2


# --- the recipe in CONTRIBUTING.md ----------------------------------------------------------------


def recipe() -> str:
    text = RECIPES.read_text(encoding="utf-8")
    return text.partition("### Add a message between nodes\n")[2].partition("\n#")[0]


def test_the_recipe_names_files_that_exist():
    named = re.findall(r"`((?:src|tests|docs)/[\w/.]+)`", recipe())
    assert {"src/nearcast/cluster/messages.py", "tests/golden/frames.py"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_what_the_recipe_says_is_all_that_it_takes(monkeypatch: pytest.MonkeyPatch):
    mesh = a_cluster()
    declaration, handler = re.findall(r"```python\n(.*?) *```", recipe(), re.DOTALL)
    names: dict[str, Any] = {**vars(messages), **vars(parts), "__name__": messages.__name__}
    exec(dedent(declaration), names)
    kind = names["Ping"]
    every = (*MESSAGES, kind)
    read_all = msgspec.msgpack.Decoder(Union[every]).decode  # noqa: UP007 - made of a tuple
    monkeypatch.setattr(messages, "_decode", read_all)
    monkeypatch.setattr(parts, "MESSAGES", every)
    exec(dedent(handler), names)
    new = names["Pings"]()
    mesh._handlers = handlers_of([*mesh.parts, new])
    mesh.meet("other", 0)
    mesh.take_part(mesh.peers["other"], TOLD, encode(kind(7)))
    assert decode(encode(kind(7))) == kind(7)
    assert new.last == {"other": 7}
