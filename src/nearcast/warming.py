"""Compile every kernel and keep it on the disk: `python -m nearcast.warming`, part of set-up."""

from __future__ import annotations


def warm_up() -> None:
    """Ask every compiled part something small; minutes the first time, seconds from then on."""
    from nearcast.index import warm_up as warm_up_index
    from nearcast.locality.kernels import warm_up as warm_up_plans
    from nearcast.matching.warming import warm_up as warm_up_matcher
    from nearcast.ordering import DeltaCausal

    warm_up_index()
    warm_up_matcher()
    warm_up_plans()
    sender, receiver = DeltaCausal("a", lifetime=1.0), DeltaCausal("b", lifetime=1.0)
    for message in sender.send({"b"}, b"", now=0.0).values():
        receiver.receive(message, now=0.0)
    receiver.advance(now=0.5)


if __name__ == "__main__":
    warm_up()
