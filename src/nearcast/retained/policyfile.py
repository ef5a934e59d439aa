"""Policies as files: JSON, one version, checked completely before anything takes effect.

    {"format": "nearcast-retained-policies", "version": 1,
     "model":   {"hold_max": 10, "age_max": 20, "discount": 0.95,
                 "timeliness": {"shape": "exponential", "scale_steps": 5.0, "floor": 0.25}},
     "general": null, or {"network": [numbers], "caution": 0.02,
                          "trained": {"publish": [0.02, 3.0], "leave": [0.0, 1.0]}},
     "topics":  {"plant/7/heat": {"rates":   {"publish": 0.6, "subscribe": 0.2, "leave": 0.1},
                                  "weights": {"omega": 0.7, "message_cost": 5.0},
                                  "actions": ["000000000000000000000", …]}}}

`actions` has one row for each d from 0 to `hold_max`, one character for each t from 0 to `age_max`:
0 sends, 1 waits. Rates are per step; a step is the topic's Dmax divided by `hold_max`.

A file of another version, cut short, or with states missing is refused with `FileFormatError`; the
caller keeps what it had. Read next: `delivery.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.retained.general import GeneralPolicy, RateRange
from nearcast.retained.process import (
    Actions,
    Caps,
    DecisionProcess,
    Rates,
    Shape,
    Timeliness,
    Weights,
)

FORMAT = "nearcast-retained-policies"
VERSION = 1


@dataclass(frozen=True, eq=False)
class TopicPolicy:
    """One topic's table, with the rates and weights that it was made for."""

    actions: Actions
    rates: Rates
    weights: Weights
    flat: bytes = field(init=False, repr=False)  # the same row by row: bytes are fast to index

    def __post_init__(self) -> None:
        object.__setattr__(self, "flat", np.ascontiguousarray(self.actions).tobytes())


@dataclass(frozen=True, eq=False)
class Policies:
    """A broker's policies: tables for some topics, one policy for all others, or neither."""

    caps: Caps = field(default_factory=Caps)
    timeliness: Timeliness = field(default_factory=Timeliness)
    discount: float = 0.95
    general: GeneralPolicy | None = None
    topics: Mapping[str, TopicPolicy] = field(default_factory=dict)

    def process(self, rates: Rates, weights: Weights) -> DecisionProcess:
        """Return the decision process behind these policies, at these rates."""
        return DecisionProcess(
            rates, weights, self.caps, self.timeliness, self.discount, whole_steps=False
        )


def policies_to_text(policies: Policies) -> str:
    """Return the file's text; `policies_from_text` reads it back unchanged."""
    general = policies.general
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": model_to_json(policies),
        "general": None if general is None else _general_to_json(general),
        "topics": {topic: _topic_to_json(policy) for topic, policy in policies.topics.items()},
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def model_to_json(policies: Policies) -> dict[str, object]:
    """Return how time and timeliness are cut, as files state it."""
    caps, timeliness = policies.caps, policies.timeliness
    return {
        "hold_max": caps.hold_max,
        "age_max": caps.age_max,
        "discount": policies.discount,
        "timeliness": {
            "shape": timeliness.shape.value,
            "scale_steps": timeliness.scale_steps,
            "floor": timeliness.floor,
        },
    }


def _general_to_json(general: GeneralPolicy) -> dict[str, object]:
    trained = general.trained
    return {
        "network": [float(number) for number in general.network],
        "caution": general.caution,
        "trained": {"publish": list(trained.publish), "leave": list(trained.leave)},
    }


def _topic_to_json(policy: TopicPolicy) -> dict[str, object]:
    rates, weights = policy.rates, policy.weights
    return {
        "rates": {
            "publish": rates.publish,
            "subscribe": rates.subscribe,
            "leave": rates.leave,
        },
        "weights": {"omega": weights.omega, "message_cost": weights.message_cost},
        "actions": ["".join(str(int(action)) for action in row) for row in policy.actions],
    }


@contextmanager
def reading(where: str, part: str, kind: str = FORMAT) -> Iterator[None]:
    """Convert any error of a malformed part into a `FileFormatError` that names the part."""
    try:
        yield
    except FileFormatError:
        raise
    except KeyError as problem:
        raise FileFormatError(
            f"no {problem} in {part}", where=where, expected=f"a whole {kind} file"
        ) from problem
    except MisuseError as problem:
        raise FileFormatError(f"{part}: {problem}", where=where) from problem
    except (TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise FileFormatError(
            f"a malformed {part} ({problem})", where=where, expected=f"a whole {kind} file"
        ) from problem


def checked_document(
    text: str, where: str, kind: str = FORMAT, version: int = VERSION
) -> dict[str, Any]:
    """Return the JSON object of a text, or raise `FileFormatError` for another kind of file."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise FileFormatError(
            f"no JSON ({problem})", where=where, expected="a whole file", todo="Was it cut short?"
        ) from problem
    if not isinstance(document, dict) or document.get("format") != kind:
        raise FileFormatError("another kind of file", where=where, expected=f'"format": "{kind}"')
    if document.get("version") != version:
        raise FileFormatError(
            f"version {document.get('version')!r}",
            where=where,
            expected=f"version {version}",
            todo="Write the policies anew with this release." if kind == FORMAT else "",
        )
    return document


def policies_from_text(text: str, where: str = "policies") -> Policies:
    """Return the policies of a text or raise `FileFormatError`; `where` names the file in it."""
    document = checked_document(text, where)
    with reading(where, "model"):
        model = document["model"]
        caps = Caps(int(model["hold_max"]), int(model["age_max"]))
        shape = model["timeliness"]
        timeliness = Timeliness(
            Shape(shape["shape"]), float(shape["scale_steps"]), float(shape["floor"])
        )
        bare = Policies(caps, timeliness, float(model["discount"]))
        bare.process(Rates(), Weights())  # checks the discount
    with reading(where, "general policy"):
        found = document["general"]
        general = None if found is None else _general_from_json(found, bare)
    topics = {}
    with reading(where, "topics"):
        for topic, entry in document["topics"].items():
            topics[topic] = _topic_from_json(entry, caps, topic, where)
    return Policies(caps, timeliness, bare.discount, general, topics)


def _pair(found: Any) -> tuple[float, float]:
    low, high = found
    return (float(low), float(high))


def _general_from_json(found: dict[str, Any], model: Policies) -> GeneralPolicy:
    trained = RateRange(_pair(found["trained"]["publish"]), _pair(found["trained"]["leave"]))
    network = np.array([float(number) for number in found["network"]])
    caution = float(found["caution"])
    return GeneralPolicy(network, model.caps, model.timeliness, model.discount, caution, trained)


def _topic_from_json(found: dict[str, Any], caps: Caps, topic: str, where: str) -> TopicPolicy:
    with reading(where, f"topic {topic!r}"):
        rates = Rates(**{key: float(value) for key, value in found["rates"].items()})
        weights = Weights(**{key: float(value) for key, value in found["weights"].items()})
        return TopicPolicy(_actions_from_json(found["actions"], caps, topic, where), rates, weights)


def _actions_from_json(rows: list[str], caps: Caps, topic: str, where: str) -> Actions:
    holds, ages = caps.table_shape
    whole = len(rows) == holds and all(len(row) == ages and set(row) <= {"0", "1"} for row in rows)
    if not whole:
        raise FileFormatError(
            f"{len(rows)} rows of {sorted({len(row) for row in rows})} states",
            where=f"{where}, topic {topic!r}",
            expected=f"{holds} rows of {ages} characters 0 or 1",
        )
    return np.array([[int(action) for action in row] for row in rows], dtype=np.uint8)


def write_policies(policies: Policies, path: Path) -> None:
    """Write a policy file atomically (a reader never sees half a file)."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(policies_to_text(policies), encoding="utf-8")
    unfinished.replace(path)


def read_policies(path: Path) -> Policies:
    """Return the policies of a file, or raise `FileFormatError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise FileFormatError(
            "bytes that are no UTF-8", where=str(path), expected="a JSON file"
        ) from problem
    return policies_from_text(text, str(path))
