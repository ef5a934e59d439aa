"""Every experiment of papers 0 to 4 as one sweep on Spark, with verdicts, figures and a report.

Each paper has a subpackage. Its `experiment.py` runs the experiment; its `claims.py` is an adapter
of one form (`form.Experiment`): it lists points, runs one of them, judges the claims by the
returned rows, and draws. Points run on any worker; the driver judges and draws. No measured value
is stored here: all come from the run. Stored is why a verdict came out as it did (`texts.py`), each
time for one verdict; where a run gives the other verdict, the report says that it is unexplained.

No threshold is adapted to a result: a claim that does not hold is reported as not holding.

Read next: `form.py`, then `sweep.py`.
"""

from nearcast.papers.form import Claim, Figure, Point, ReportTable
from nearcast.papers.registry import PAPERS, chosen
from nearcast.papers.report import RunOutcome, page
from nearcast.papers.reproduce import reproduce

__all__ = [
    "PAPERS",
    "Claim",
    "Figure",
    "Point",
    "ReportTable",
    "RunOutcome",
    "chosen",
    "page",
    "reproduce",
]
