"""Structured Streaming: the `match` job as a query that never ends, and live sources for it.

Read next: `stream.py`, `live_stream.py`, then `data_sources.py`, `spool.py` and `collector.py`.
"""
