"""Peer sessions: each other node of the cluster is an MQTT session of this broker.

Read next: `sessions.py` (the sessions), `publish_handler.py` (PUBLISH packets from other nodes).
"""
