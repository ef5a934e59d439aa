"""Boxes on several attributes: an R-tree over flat arrays with compiled kernels.

Read next: `box_index.py` (the public class), `boxes.py` (the same for a broker whose kernels are
still being compiled), then `pools.py` (memory) and `tree.py` (changes).
"""
