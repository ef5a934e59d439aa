"""Every experiment of papers 0 to 4 as one sweep on Spark, with verdicts, figures and a report.

Each paper has an adapter (`paper_0.py` … `paper_4.py`) of one form: it lists points, runs one of
them, judges the claims by the rows that came back, and draws. Points run anywhere; judging and
drawing happen where the command was started. No measured value is written down here: all of them
come from the run. What is written down is why a verdict came out as it did (`stories.py`), each
time for one verdict; where a run comes to the other one, the report says that it is unexplained.

It runs no experiment itself (`nearcast.experiments` does) and changes no threshold: a claim that
does not hold is reported as not holding.

Read next: `form.py`, then `sweep.py`.
"""

from nearcast.reproduction.form import Claim, Experiment, Figure, Point, Row, Table
from nearcast.reproduction.papers import PAPERS, chosen
from nearcast.reproduction.report import Outcome, page
from nearcast.reproduction.reproduce import reproduce

__all__ = [
    "PAPERS",
    "Claim",
    "Experiment",
    "Figure",
    "Outcome",
    "Point",
    "Row",
    "Table",
    "chosen",
    "page",
    "reproduce",
]
