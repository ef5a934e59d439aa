"""What an attempt to connect says about a peer: it answers, has ended, or nothing is known."""

from __future__ import annotations

import pytest

from nearcast.server.overlay.dialing import ONCE, Dialed, dial

ME, LATER = "10.0.0.7:7000/01", "10.0.0.7:7000/02"
SHORT = (0.0, 0.001, 0.001)


@pytest.mark.parametrize(
    ("outcomes", "pauses", "expected", "attempts"),
    [
        ([ME], ONCE, Dialed(ME, has_ended=False), 1),
        ([LATER], SHORT, Dialed(LATER, has_ended=True), 1),
        ([ConnectionRefusedError()], SHORT, Dialed("", has_ended=True), 1),
        ([ConnectionResetError()], ONCE, Dialed("", has_ended=False), 1),
        ([ConnectionResetError(), ConnectionRefusedError()], SHORT, Dialed("", has_ended=True), 2),
        ([ConnectionError("this peer has 256 links already"), ME], SHORT, Dialed(ME, False), 2),
        ([TimeoutError()] * 3, SHORT, Dialed("", has_ended=False), 3),
    ],
)
async def test_a_refusal_or_another_name_is_an_end_and_nothing_else(
    outcomes, pauses, expected, attempts
):
    left = list(outcomes)

    async def connect(peer: str) -> str:
        assert peer == ME
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    assert await dial(connect, ME, pauses) == expected
    assert len(outcomes) - len(left) == attempts
