"""Paper 1: ranked matching with an interval skip list. Start with `experiment.py`."""
