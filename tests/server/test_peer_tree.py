"""`nearcast peers`: states of peers, which need not agree, as rows, text and a picture."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from nearcast.server.overlay.tree import picture, tree_lines, tree_rows


def _peer(
    name: str, parent: str | None, *groups: list[str], overhead: float = 0.0
) -> dict[str, Any]:
    seat = {
        "seat": 0,
        "box": [[0.0, None], [10.0, None]],
        "parent": None if parent is None else [parent, 0],
        "is_settled": True,
        "top": len(groups) - 1,
        "groups": [[[one, 0] for one in group] for group in groups],
        "received": 3,
        "unwanted": 1,
        "forwarded": 2,
        "delivered": 2,
        "overhead": overhead,
    }
    return {"peer": name, "spaces": {"shops": {"seats": [seat]}}}


TREE = [
    _peer("a:1/0", None, ["a:1/0"], ["a:1/0", "b:1/0", "c:1/0"], overhead=30),
    _peer("b:1/0", "a:1/0", ["b:1/0"], overhead=10),
    _peer("e:1/0", "gone:1/0", ["e:1/0"]),
]


def test_a_tree_is_drawn_from_its_root_and_says_what_is_missing():
    lines = list(tree_lines(TREE, "shops"))
    assert [line.split("  ")[0] for line in lines[1:]] == ["a:1#0", "├─ b:1#0", "└─ c:1#0", "e:1#0"]
    assert "1 level" in lines[1]
    assert "75%" in lines[1]
    assert "0..10 × any" in lines[2]
    assert "does not answer" in lines[3]
    assert "its parent gone:1/0 is not found" in lines[4]


def test_the_picture_has_a_row_for_each_box_and_the_longest_bar_for_the_most_overhead():
    drawn = ElementTree.fromstring(picture(TREE, "shops"))
    texts = [one.text for one in drawn.iter() if one.tag.endswith("text")]
    assert {"a:1#0", "b:1#0", "c:1#0", "e:1#0", "does not answer"} <= set(texts)
    bars = [
        int(one.attrib["width"]) for one in drawn.iter() if "e3a857" in one.attrib.get("fill", "")
    ]
    assert bars == [200, 67, 0]


def test_peers_that_claim_each_other_are_drawn_once():
    circle = [
        _peer("a:1/0", "b:1/0", ["a:1/0"], ["a:1/0", "b:1/0"]),
        _peer("b:1/0", "a:1/0", ["b:1/0"], ["b:1/0", "a:1/0"]),
    ]
    assert [row.name for row in tree_rows(circle, "shops")] == ["a:1#0", "b:1#0", "a:1#0"]
    assert tree_rows([], "shops") == []
    assert list(tree_lines([], "nothing")) != []
