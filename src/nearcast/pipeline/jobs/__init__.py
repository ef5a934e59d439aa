"""The batch jobs, one module each; `run.py` runs them in order."""
