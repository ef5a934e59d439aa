"""Policies and a copy for the tests of deferred retained delivery."""

from __future__ import annotations

from nearcast.retained import (
    DecisionProcess,
    Policies,
    Rates,
    RetainedCopy,
    TopicPolicy,
    Weights,
    shipped_policy,
)

GENERAL = Policies(general=shipped_policy())
THRIFTY = Weights(0.3, 5.0)  # traffic weighs more: waits wherever that is sensible
WAITING = TopicPolicy(DecisionProcess().always_wait(), Rates(), Weights())
SENDING = TopicPolicy(DecisionProcess().plain(), Rates(), Weights())
COPY = RetainedCopy()
