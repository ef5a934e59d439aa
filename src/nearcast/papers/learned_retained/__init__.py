"""Paper 4: retained messages sent by a learned policy. Start with `experiment.py`."""
