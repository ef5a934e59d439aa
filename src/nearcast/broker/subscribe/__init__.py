"""SUBSCRIBE and UNSUBSCRIBE, and retained messages for new subscriptions.

Read next: `handler.py`, then `retained_copies.py`.
"""
