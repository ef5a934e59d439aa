"""The processes of one broker (`[node] workers`) as a cluster in which every session has its place.

    identifier ──hash──► number of a worker: its session is there, and nowhere else

So nobody has to be asked where a session is. The server passes a client's connection to the worker
of its session before any byte of it is read (`nearcast/server/workers/handover.py`). Where it could
not (TLS, WebSocket, an identifier that is not the one in CONNECT), the client is relayed as between
nodes of a network.

Read next: `worker_cluster.py`, `registry.py`, `nearcast/server/workers/__init__.py`.
"""
