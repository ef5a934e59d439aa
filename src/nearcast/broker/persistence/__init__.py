"""Persistence: a record of every change that must survive a crash, and the replay of records.

Read next: `journal.py` (changes become records), `replay.py` (records become state, state becomes
the fewest records), `unapplied_records.py` (records that cannot be applied are set aside).
"""
