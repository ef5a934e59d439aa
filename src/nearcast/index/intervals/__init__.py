"""Intervals on one attribute: the interval skip list of paper 1.

Read next: `interval_skip_list.py` (the public class), then `nodes.py`, `lists.py`, `queries.py`.
"""
