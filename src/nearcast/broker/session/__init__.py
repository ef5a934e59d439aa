"""Connections and sessions: CONNECT, keep-alive, wills, expiry.

Read next: `session.py` and `connection.py` (the state), `connect.py` (from CONNECT to a session),
`lifecycle.py` (how connections and sessions end), `admission.py` (limits before login).
"""
