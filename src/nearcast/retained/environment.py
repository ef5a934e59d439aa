"""The decision process as a Gymnasium environment, `nearcast/RetainedDelivery-v0`.

Needs the extra `nearcast[research]`. Importing this module registers the environment:

    gymnasium.make("nearcast.retained.environment:nearcast/RetainedDelivery-v0")

An episode is that of one new subscriber: from SUBSCRIBE until a live message or its leaving. The
observation is `(u, d, t, n, w)` of `process.py`, the reward that module's formula.
"""

from __future__ import annotations

from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from nearcast.retained.process import SEND, WAIT, DecisionProcess

Observation = NDArray[np.int64]
ENVIRONMENT_ID = "nearcast/RetainedDelivery-v0"


class RetainedDeliveryEnvironment(gymnasium.Env[Observation, SupportsInt]):
    """One new subscriber on a topic with others that come and go; 0 sends the copy, 1 waits."""

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, process: DecisionProcess | None = None, render_mode: str | None = None):
        self.process = process or DecisionProcess()
        self.render_mode = render_mode
        caps = self.process.caps
        sizes = [2, caps.hold_max + 1, caps.age_max + 1, caps.subscribers_max + 1, 2]
        self.observation_space = spaces.MultiDiscrete(sizes)
        self.action_space = spaces.Discrete(2)
        self._phase = 0
        self._held = self._age = self._subscribers = self._waiting = 0

    def _observation(self) -> Observation:
        new = int(self._age == 0)
        state = (new, self._held, self._age, self._subscribers, self._waiting)
        return np.array(state, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start with a new subscriber, the topic in its long-run state.

        The message is older than one step.
        """
        super().reset(seed=seed, options=options)
        begin = self.process.start.copy()
        begin[:, 0] = 0.0
        if begin.sum() == 0.0:  # a message in every step: the youngest possible state
            begin[:, 1] = 1.0
        drawn = int(self.np_random.choice(begin.size, p=(begin / begin.sum()).ravel()))
        self._phase, self._age = divmod(drawn, begin.shape[1])
        others = self.process.subscribers
        count = int(self.np_random.choice(len(others), p=others / others.sum()))
        self._subscribers = min(count + 1, self.process.caps.subscribers_max)
        self._held, self._waiting = 0, 1
        return self._observation(), {}

    def _must_send(self) -> bool:
        caps = self.process.caps
        return self._held >= caps.hold_max or self._age >= caps.age_max

    def _reward(self, blind: int) -> float:
        weights = self.process.weights
        knowing = float(self.process.value_of_age[self._age]) * (self._subscribers - blind)
        messages = self._waiting - blind if self._age > 0 else self._subscribers
        traffic = messages * weights.message_cost
        return weights.omega * knowing - (1.0 - weights.omega) * traffic

    def step(self, action: SupportsInt) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Send (0) or wait (1); `info["forced"]` tells when waiting was not allowed.

        The episode ends with the step in which a message arrives (its reward counted) or the new
        subscriber leaves.
        """
        forced = self._waiting == 1 and int(action) == WAIT and self._must_send()
        chosen = SEND if forced or self._waiting == 0 else int(action)
        blind = self._waiting if chosen == WAIT else 0
        reward = self._reward(blind)
        left = self._move(blind)
        if self._age == 0:
            reward += self.process.discount * self._reward(0)
        over = left or self._age == 0
        return self._observation(), reward, over, False, {"forced": forced}

    def _move(self, blind: int) -> bool:
        """Advance one step; return whether the new subscriber left."""
        random, process = self.np_random, self.process
        left = bool(random.random() >= process.stay)
        others = int(random.binomial(self._subscribers - 1, process.stay))
        came = int(random.poisson(process.rates.subscribe))
        count = others + came + (0 if left else 1)
        self._subscribers = min(count, process.caps.subscribers_max)
        published = bool(random.random() < process.phases.chance[self._phase])
        moves = process.phases.moves[self._phase]
        self._phase = int(random.choice(len(moves), p=moves))
        self._age = 0 if published else min(self._age + 1, process.caps.age_max)
        self._held = self._held + 1 if blind and not published else self._held * (not published)
        self._waiting = 0 if published or left else blind
        return left


if ENVIRONMENT_ID not in gymnasium.registry:
    gymnasium.register(
        id=ENVIRONMENT_ID,
        entry_point="nearcast.retained.environment:RetainedDeliveryEnvironment",
        max_episode_steps=1000,
    )
