"""The plan of a cluster (paper 0): which leaf, and which broker, serves which place.

Read next: `plan.py`, then `grid.py`, `quadtree.py` and `rtree.py` (its parts), `slow_regions.py`
(what it is laid out by), `balancing.py` (leaves on brokers), `planfile.py`.
"""
