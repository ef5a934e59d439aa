"""One broker on several processors: `[node] workers`.

                 parent: binds the ports, starts the workers, starts again those that die
                   │ control channel, links and connections as descriptors
       ┌───────────┴───────────┐
    worker 1 ════ link ════ worker 2        each a broker with its own sessions and journal
       ▲                       ▲
       └── one port: whoever accepts a client reads its identifier and passes the connection on

The workers are nodes of a cluster (`nearcast.cluster`) whose links are Unix sockets between
processes of one parent, which takes the place of NATS.

Read next: `supervisor.py`, `server.py`, `handover.py`, `runtime.py`, `layout.py`.
"""
