"""Input of jobs: files of users (`files.py`), event logs, subscription tables, and their checks."""
