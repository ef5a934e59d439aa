"""Paper 3: content-based publish/subscribe on a peer-to-peer R-tree. Start with `experiment.py`."""
