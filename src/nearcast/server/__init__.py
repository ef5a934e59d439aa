"""A node on asyncio (uvloop): TCP, TLS, WebSocket, storage, passwords, figures.

Does: own the sockets, the clock, the files and the signals. `serve(configuration)` is the whole
broker; `Server` is the same for code that has a loop already.

Will not: decide anything about MQTT; that is `nearcast.node`.

Read next: `server` (start and end), `listening` (ports), `turns` (what happens per turn of the
loop), `tcp` and `websocket` (transports), `storage` (the journal on disk), `access` (passwords and
rules); `client` is what the commands talk to a broker with.
"""

from nearcast.server.access import hash_password, is_password, read_users, set_password
from nearcast.server.client import Client, Target, broker_figures
from nearcast.server.logs import set_up_logging
from nearcast.server.server import Server, run, serve
from nearcast.server.storage import JournalFile

__all__ = [
    "Client",
    "JournalFile",
    "Server",
    "Target",
    "broker_figures",
    "hash_password",
    "is_password",
    "read_users",
    "run",
    "serve",
    "set_password",
    "set_up_logging",
]
