"""A broker on asyncio (uvloop): TCP, TLS, WebSocket, storage, passwords, metrics, cluster.

Does: own the sockets, the clock, the files and the signals. `serve(configuration)` is the whole
broker; `Server` is the same for code that already runs an event loop.

Does not: decide anything about MQTT; that is `nearcast.broker`.

Read next: `running.py` and `server.py` (start and stop), `loop_batches.py` (one iteration of the
event loop), `listeners/` (ports and transports), `storage/` (the journal on disk), `auth/`
(passwords and rules), `metrics/`, `http/` (the management address), `eventlog/`, `feed/`,
`cluster/` (NATS and direct links). The commands talk to a broker with `nearcast.client`.
"""

from nearcast.server.auth.passwords import hash_password, is_password, read_users, set_password
from nearcast.server.log_format import set_up_logging
from nearcast.server.running import run, serve
from nearcast.server.server import Server
from nearcast.server.storage.journal_file import JournalFile

__all__ = [
    "JournalFile",
    "Server",
    "hash_password",
    "is_password",
    "read_users",
    "run",
    "serve",
    "set_password",
    "set_up_logging",
]
