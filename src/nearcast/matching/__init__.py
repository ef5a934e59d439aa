"""Which subscriptions match an event, exactly, and which match it best.

One `Matcher` serves a broker and Spark: topic filter, then the boxes of the space, then the exact
shape, then rank and k. It delivers nothing, and knows no sessions and no MQTT packets.

Read `matcher.py` first; `filter_index.py` has the boxes of one topic filter in one space,
`ranking.py` defines the ranks, `files.py` saves a matcher for workers.
"""

from nearcast.matching.files import open_matcher, save_matcher
from nearcast.matching.matcher import Matcher
from nearcast.matching.ranking import Match
from nearcast.matching.view import MatcherView

__all__ = [
    "Match",
    "Matcher",
    "MatcherView",
    "open_matcher",
    "save_matcher",
]
