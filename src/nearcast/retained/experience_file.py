"""The experience of topic groups as a file, so that a restart does not begin anew.

    {"format": "nearcast-retained-experience", "version": 1,
     "model":  {"hold_max": 10, "age_max": 20, "discount": 0.95, "timeliness": {…}},
     "groups": [{"topics": "plant/#", "hold_s": 10.0, "omega": 0.7, "cost": 5.0,
                 "octave": -1, "manner": 2, "follows": "experience",
                 "evidence": [6 numbers], "visits": [a count for each age],
                 "quality": [[a number for each age] for each d]}]}

Kept: each group's table, the evidence, and what it follows. Not kept: the rates of topics, and new
subscribers that were still observed. A group of another block, Dmax, ω or Cp is left out.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nearcast.model.errors import FileFormatError
from nearcast.retained.answers import BlockKey
from nearcast.retained.experience import Experience, Follows
from nearcast.retained.groups import MANNERS, GroupName, TopicGroups
from nearcast.retained.policyfile import Policies, checked_document, model_to_json, reading
from nearcast.retained.process import Weights

FORMAT = "nearcast-retained-experience"
VERSION = 1


def experience_to_text(groups: TopicGroups, policies: Policies) -> str:
    """Return the file's text; `experience_from_text` reads it back unchanged."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": model_to_json(policies),
        "groups": [_group_to_json(name, one) for name, one in groups.all()],
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


def _group_to_json(name: GroupName, one: Experience) -> dict[str, object]:
    topics, hold_s, omega, cost = name.block
    return {
        "topics": topics,
        "hold_s": hold_s,
        "omega": omega,
        "cost": cost,
        "octave": name.octave,
        "manner": name.manner,
        "follows": one.follows.name.lower(),
        "evidence": one.evidence.tolist(),
        "visits": one.visits.tolist(),
        "quality": one.quality.tolist(),
    }


def experience_from_text(
    text: str, policies: Policies, where: str = "experience"
) -> list[tuple[GroupName, Experience]]:
    """Return the groups of a text or raise `FileFormatError`; none if the model is another one."""
    document = checked_document(text, where, FORMAT, VERSION)
    with reading(where, "groups", FORMAT):
        if document["model"] != json.loads(json.dumps(model_to_json(policies))):
            return []
        return [_group_from_json(entry, policies, where) for entry in document["groups"]]


def _group_from_json(
    entry: dict[str, Any], policies: Policies, where: str
) -> tuple[GroupName, Experience]:
    weights = Weights(float(entry["omega"]), float(entry["cost"]))
    hold_s = float(entry["hold_s"])
    block = BlockKey(str(entry["topics"]), hold_s, weights.omega, weights.message_cost)
    name = GroupName(block, int(entry["octave"]), int(entry["manner"]))
    if not 0 <= name.manner < len(MANNERS):
        raise FileFormatError(f"manner {name.manner}", where=where, expected="0, 1 or 2")
    one = Experience(weights, policies.caps, policies.timeliness, policies.discount)
    one.follows = Follows[str(entry["follows"]).upper()]
    for part in ("evidence", "visits", "quality"):
        array = getattr(one, part)
        given = np.array(entry[part], dtype=array.dtype)
        if given.shape != array.shape or not np.isfinite(given).all():
            raise FileFormatError(
                f"{part} of shape {given.shape}",
                where=f"{where}, group '{name}'",
                expected=f"finite numbers of shape {array.shape}",
            )
        array[:] = given
    if one.visits.min() < 0 or one.evidence[0] < 0.0:
        raise FileFormatError("a negative count", where=f"{where}, group '{name}'")
    return name, one
