"""A client that publishes in a cluster, and what it is answered."""

from nearcast.mqtt import PacketReader, PublishAnswer, ReasonCode
from nearcast.simulator.mqtt_node import SimulatedClient


class Writer(SimulatedClient):
    """A client that keeps the answers to what it publishes."""

    def __init__(self) -> None:
        super().__init__("writer")
        self.reasons: list[ReasonCode] = []
        self._reader = PacketReader()

    def receive(self, data: bytes) -> None:
        answers = [one for one in self._reader.feed(data) if isinstance(one, PublishAnswer)]
        self.reasons += [ReasonCode(one.reason) for one in answers]
        super().receive(data)
