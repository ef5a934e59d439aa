"""The Spark jobs: from event logs and trajectories to tables, plans, policies and an audit.

- `session.py` builds the Spark session; nothing else does.
- `sources/` reads input: files of users, event logs, subscription tables.
- `tables/transaction.py` writes a DataFrame as the next version of a table, or not at all.
  `tables/worker_writes.py` and `tables/worker_reads.py` let Python workers write and read Parquet
  where Java would only forward rows.
- `job.py` says what a batch job is, `jobs/` has one module per job, `run.py` runs them in order.
  A job is functions from DataFrame to DataFrame; its algorithm lives in a core package.
- `streaming/` is the `match` job as a Structured Streaming query; `audit/` checks deliveries.

The package needs the extra `nearcast[spark]` and Java 17 or newer. Nothing here serves clients.
"""
