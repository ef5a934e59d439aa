"""A node in a cluster: NATS, direct links, membership, shared settings.

Read next: `runtime.py`, then `nearcast/nats/connection.py`, `nats_frames.py`, `nats_members.py` and
`direct_links.py`.
"""
