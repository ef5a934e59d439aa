"""The audit: finds every wrong delivery in the event logs of all nodes.

Read next: `job.py` (the Spark job), `deliveries.py` (one segment of one node), `hops.py`,
`places.py` and `causal.py` (checks that need the logs of two nodes).
"""
