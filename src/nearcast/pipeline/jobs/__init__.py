"""The batch jobs, one module each; `nearcast/pipeline/run.py` runs them in order."""
