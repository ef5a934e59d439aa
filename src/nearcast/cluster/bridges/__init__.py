"""Bridges between the network and overlays of peers: which one works, and what clients want there.

Does not carry messages between the two; that is `nearcast.server.overlay.bridge`.

Read next: `bridging.py`.
"""
