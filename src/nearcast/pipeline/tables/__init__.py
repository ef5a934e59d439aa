"""Versioned tables that jobs write, published together or not at all; see `transaction.py`."""
