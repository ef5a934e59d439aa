"""Intervals on one attribute: the interval skip list of paper 1.

Read next: `interval_skip_list.py` (the public class), then `memory.py`, `skip_list.py` (the paper's
structure), `runs.py`, `queries.py` and `top.py`.
"""
