"""Who matches an event, exactly, and who matches it best.

One `Matcher` answers for a broker and for Spark: topic filter, then the boxes of the space, then
the exact shape, then rank and k. It delivers nothing, knows no sessions and no MQTT packets.

Read `matcher.py` first; `shelf.py` holds the boxes of one topic filter in one space, `ranking.py`
says what is better, `files.py` saves a matcher for workers.
"""

from nearcast.matching.files import open_matcher, save_matcher
from nearcast.matching.matcher import Matcher
from nearcast.matching.ranking import Match
from nearcast.matching.view import MatcherView
from nearcast.model import RANKS

__all__ = [
    "RANKS",
    "Match",
    "Matcher",
    "MatcherView",
    "open_matcher",
    "save_matcher",
]
