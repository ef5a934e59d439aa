"""The answer to `nearcast policy explain`: what a new subscriber of a topic would get now, and why.

Read next: `nearcast/retained/decisions.py`, which decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nearcast.broker.retained import created
from nearcast.broker.state import BrokerState
from nearcast.model.errors import MisuseError

if TYPE_CHECKING:  # a broker without deferred retained messages does not load that package
    from nearcast.retained import Outlook


def explain_newcomer(state: BrokerState, topic: str) -> dict[str, object]:
    """Return what a new subscriber of a topic would get now, and why; nothing changes."""
    deferred = state.deferral.deferred
    message = state.retained.get(topic)
    found: dict[str, object] = {"topic": topic, "decision": "send", "retained": message is not None}
    if message is not None and 0 < message.expires_at_ms <= state.now_ms:
        found["retained"] = False
    if deferred is None:
        return found | {"because": "no [[retained]] block: every topic is plain MQTT"}
    if not found["retained"] or message is None:
        return found | {"decision": "nothing", "because": "no message is retained on this topic"}
    outlook = deferred.outlook(topic, message)
    stated = "no creation time"
    try:
        if created.created_s(message, outlook.setting.created, state.now_ms / 1000) is not None:
            stated = f"its {outlook.setting.created} counts"
    except MisuseError as problem:
        stated = f"not used: {problem}"
    left_s = (message.expires_at_ms - state.now_ms) / 1000 if message.expires_at_ms else math.inf
    because, waits = outlook.why, outlook.waits
    if waits and left_s <= outlook.setting.hold_max_s:
        because, waits = "the message expires within Dmax", False
    return found | {
        "decision": "wait" if waits else "send",
        "because": because,
        "setting": _setting(outlook),
        "age_s": _number(outlook.age_s),
        "created": stated,
        "rates": _rates(outlook),
        "model": None if not outlook.model else _choice(outlook.model, outlook.model_waits),
        "experience": _experience(outlook),
    }


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _choice(name: str, waits: bool) -> dict[str, object]:
    return {"policy": name, "decision": "wait" if waits else "send"}


def _setting(outlook: Outlook) -> dict[str, object]:
    setting = outlook.setting
    return {
        "topics": setting.filter,
        "mode": setting.mode.value,
        "hold_s": setting.hold_max_s,
        "omega": setting.weights.omega,
        "cost": setting.weights.message_cost,
    }


def _rates(outlook: Outlook) -> dict[str, object] | None:
    rates = outlook.rates
    if rates is None:
        return None
    return {
        "publish_per_s": _number(rates.publish_per_s),
        "subscribe_per_s": _number(rates.subscribe_per_s),
        "leave_per_s": _number(rates.leave_per_s),
        "publishes_seen": _number(rates.publishes_seen),
        "spread": _number(outlook.spread),
    }


def _experience(outlook: Outlook) -> dict[str, object] | None:
    """Return the evidence of the topic's group; gains are shares of a message's cost."""
    name, group = outlook.group, outlook.experience
    if name is None:
        return None
    found: dict[str, object] = {"group": str(name), "publishes": name.publishes}
    if group is None:
        return found | {"count": 0.0, "follows": name.begins_with.name.lower()}
    of_model, of_experience = group.gains
    return found | {
        "count": round(group.count, 1),
        "follows": group.follows.name.lower(),
        "gain_of_model": round(of_model, 4),
        "gain_of_experience": round(of_experience, 4),
        "decision": "wait" if outlook.experience_waits else "send",
    }
