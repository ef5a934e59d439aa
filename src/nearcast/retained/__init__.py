"""Retained messages, sent when it pays: a new subscriber gets the copy now or the next publish.

Paper 4. The modules:

- `process.py`: the decision process, the reward's lost formula fixed and written down;
- `exact.py`: the best policy, and the exact value of any policy;
- `qlearning.py`: the paper's Q-learning, a table for one topic;
- `general.py`, `fitting.py`: one small function of the rates for all topics;
- `policyfile.py`: policies as versioned files;
- `experience.py`, `groups.py`: what waiting cost and saved real new subscribers, and Q-learning
  from that, for each group of topics;
- `rates.py`, `answers.py`, `decisions.py`, `delivery.py`: the core that a node calls.
  `RetainedDelivery` defers copies and releases them, never an older message after a newer one,
  never later than Dmax;
- `environment.py` (Gymnasium), `picture.py` (matplotlib): imported only on request.

It does not store retained messages, match filters, queue or send anything, or read a clock.
Deferring deviates from MQTT, so it is off until a topic's setting enables it.

Read next: `process.py` for the theory, `delivery.py` for the practice.
"""

from nearcast.retained.answers import (
    SEND_NOTHING,
    SEND_NOW,
    Answer,
    Evidence,
    Handling,
    LearningBounds,
    Mode,
    Release,
    ReleaseReason,
    RetainedCopy,
    SendNow,
    TopicSetting,
    Wait,
)
from nearcast.retained.decisions import Outlook
from nearcast.retained.delivery import RetainedDelivery
from nearcast.retained.exact import (
    attainable_gain,
    best_actions,
    best_reward,
    expected_reward,
    mean_reward,
    newcomer_worth,
    share_of_gain,
    solve,
    spent_on_newcomers,
)
from nearcast.retained.experience import Experience, Follows
from nearcast.retained.fitting import Fit, fit
from nearcast.retained.general import GeneralPolicy, RateRange, shipped_policy
from nearcast.retained.policyfile import (
    Policies,
    TopicPolicy,
    policies_from_text,
    policies_to_text,
    read_policies,
    write_policies,
)
from nearcast.retained.process import (
    Caps,
    DecisionProcess,
    Publishing,
    Rates,
    Shape,
    Timeliness,
    Weights,
)
from nearcast.retained.qlearning import Learned, Learning, learn
from nearcast.retained.rates import RateEstimators

__all__ = [
    "SEND_NOTHING",
    "SEND_NOW",
    "Answer",
    "Caps",
    "DecisionProcess",
    "Evidence",
    "Experience",
    "Fit",
    "Follows",
    "GeneralPolicy",
    "Handling",
    "Learned",
    "Learning",
    "LearningBounds",
    "Mode",
    "Outlook",
    "Policies",
    "Publishing",
    "RateEstimators",
    "RateRange",
    "Rates",
    "Release",
    "ReleaseReason",
    "RetainedCopy",
    "RetainedDelivery",
    "SendNow",
    "Shape",
    "Timeliness",
    "TopicPolicy",
    "TopicSetting",
    "Wait",
    "Weights",
    "attainable_gain",
    "best_actions",
    "best_reward",
    "expected_reward",
    "fit",
    "learn",
    "mean_reward",
    "newcomer_worth",
    "policies_from_text",
    "policies_to_text",
    "read_policies",
    "share_of_gain",
    "shipped_policy",
    "solve",
    "spent_on_newcomers",
    "write_policies",
]
