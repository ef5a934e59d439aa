"""Compile what a member of a causal group does, so that no message waits for it."""

from __future__ import annotations

from nearcast.ordering.delta_causal import DeltaCausal
from nearcast.ordering.message import Message


def warm_up() -> None:
    """Send, read, receive, wait, restore and forget once; seconds, minutes the very first time."""
    sender, receiver = DeltaCausal("a", lifetime=1.0), DeltaCausal("b", lifetime=1.0)
    for now in (0.0, 0.1):
        told = [Message.decode(one.encode()) for one in sender.send({"b"}, b"", now=now).values()]
        receiver.receive(told[0], now=now)
    receiver.receive(sender.send({"b"}, b"", now=0.2)["b"].encode(), now=0.2)
    receiver.receive_many([sender.send({"b"}, b"", now=0.3)["b"].encode()], now=0.3)
    receiver.advance(now=0.5)
    DeltaCausal.restore(receiver.snapshot()).advance(now=0.5)
    receiver.forget("a")
