"""The Spark jobs: from logs and trajectories to clean tables, regions, matches.

- `session.py` is the one place that builds a Spark session.
- `tables.py` writes a DataFrame as the next version of a table, or not at all.
- `part_files.py` and `part_scans.py` let workers write and read Parquet themselves, where Java
  would only pass rows on.
- One module per job; a job is functions from DataFrame to DataFrame, and its algorithm is a core's.

It needs the extra `nearcast[spark]` and Java 17 or newer. Nothing here serves clients.
"""
