"""The connection of a stream to a broker: it acknowledges messages only when its user says so.

The user calls `acknowledge` for QoS 1 messages that are on disk, then `ping`; the answer to the
ping shows that the broker has processed the acknowledgements.
"""

from __future__ import annotations

import time
from collections import deque

from nearcast.client.blocking import BlockingClient, BrokerAddress
from nearcast.model import MisuseError
from nearcast.model.errors import EnvironmentProblem, NearcastError
from nearcast.mqtt import Packet, Pingresp, ReasonCode
from nearcast.pipeline.streaming.addresses import LiveAddress

RECEIVE_MAXIMUM = 4_096
KEEP_ALIVE_S = 30
_RETRY_LATER = (ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)


class MqttConnection(BlockingClient):
    """A blocking client without automatic acknowledgements.

    A broker answers in order: its answer to a ping shows that it has processed everything sent
    before. `answered` is the mark of the last answered ping.

    Raises EnvironmentProblem where the broker cannot be reached or the connection breaks, and
    MisuseError where the broker refuses the connection.
    """

    def __init__(self, address: LiveAddress, client_id: str, *, session_expiry_s: int) -> None:
        self._address = address
        self._marks: deque[int] = deque()  # of unanswered pings
        self.answered = 0
        target = BrokerAddress(
            host=address.host,
            port=address.port,
            client_id=client_id,
            user_name=address.user,
            password=None if address.password is None else address.password.encode(),
            keep_alive_s=KEEP_ALIVE_S,
            clean_start=not session_expiry_s,
            session_expiry_s=session_expiry_s,
            tls=address.scheme == "mqtts",
            receive_maximum=RECEIVE_MAXIMUM,
        )
        super().__init__(target, acknowledges=False)

    def read_for(self, wait_s: float) -> list[Packet]:
        """Return the packets that have arrived or arrive within `wait_s`; pings when due."""
        packets = self.read(time.monotonic() + wait_s)
        for packet in packets:
            if isinstance(packet, Pingresp) and self._marks:
                self.answered = self._marks.popleft()
        return packets

    def ping(self, mark: int | None = None) -> None:
        """Send a PINGREQ; `answered` becomes `mark` with its answer. Marks never decrease."""
        last = self._marks[-1] if self._marks else self.answered
        self._marks.append(last if mark is None else mark)
        super().ping()

    def connection_refused(self, reason: int, why: str) -> NearcastError:
        """Return MisuseError, or EnvironmentProblem where trying again later may help."""
        found, address = f"the broker refused the connection ({why})", self._address
        if reason in _RETRY_LATER:
            return EnvironmentProblem(found, where=address.place)
        todo = f"Check user and password: {address.scheme}://USER:PASSWORD@{address.host}:…"
        return MisuseError(found, where=address.place, todo=todo)

    def connection_closed(self, why: str) -> NearcastError:
        """Return EnvironmentProblem: streams open a new connection."""
        reason = why or "the broker closed it"
        return EnvironmentProblem(f"the connection broke ({reason})", where=self._address.place)
