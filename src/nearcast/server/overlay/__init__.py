"""A peer of the content overlay as a process: publish/subscribe without servers (paper 3).

`Peer` is for Python programs; `PeerServer` serves MQTT clients (`nearcast peer`). Both surround
`nearcast.overlay.live.member`, which decides everything.

Read next: `links.py` (TCP), `runtime.py` (timers and messages), `local_clients.py` (the broker).
"""

from nearcast.server.overlay.peer import Peer, PeerEvent

__all__ = ["Peer", "PeerEvent"]
