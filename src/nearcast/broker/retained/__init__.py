"""Retained messages: the store, its updates, and deferred delivery by a learned policy.

Read next: `store.py`, `updates.py`, then `deferred.py` (paper 4: a subscriber gets the copy when
that pays).
"""
