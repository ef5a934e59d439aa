"""Questions of an operator to the other nodes: who is asked, when one ends and with what."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nearcast.cluster.links import Link
from nearcast.cluster.messages import (
    OperatorAnswer,
    OperatorQuestion,
    PeerMessage,
    PeerVersion,
)
from nearcast.cluster.operators.questions import PATIENCE_MS, Answers, OperatorQuestions
from nearcast.cluster.peer import PeerNode
from nearcast.cluster.peer_registry import PeerRegistry

NOW_MS = 1_700_000_000_000


class Peers:
    """The connected peers, and what they were told."""

    def __init__(self, **versions: int) -> None:
        link = cast("Link", None)
        self.present = [PeerNode(name, link, version=one) for name, one in versions.items()]
        self.told: list[tuple[str, PeerMessage]] = []

    def tell_named(self, name: str, message: PeerMessage) -> None:
        self.told.append((name, message))

    def named(self, name: str) -> PeerNode:
        return next(one for one in self.present if one.name == name)


@pytest.fixture
def peers() -> Peers:
    return Peers(b=PeerVersion.ASKS_FOR_OPERATORS, c=9, old=PeerVersion.HAS_BRIDGES)


@pytest.fixture
def questions(peers: Peers) -> OperatorQuestions:
    return OperatorQuestions(cast("PeerRegistry", peers))


def asked(questions: OperatorQuestions, peers: Peers) -> tuple[int, list[Answers]]:
    """Ask something; return its number, and a list that gets the end of it."""
    ends: list[Answers] = []
    questions.ask(b"who?", ends.append, NOW_MS)
    numbers = {cast("OperatorQuestion", one).number for _, one in peers.told}
    assert len(numbers) == 1
    peers.told.clear()
    return numbers.pop(), ends


def test_peers_that_understand_it_are_asked_and_all_answers_are_waited_for(
    questions: OperatorQuestions, peers: Peers
):
    ends: list[Answers] = []
    questions.ask(b"who?", ends.append, NOW_MS)
    assert [name for name, _ in peers.told] == ["b", "c"]
    number = cast("OperatorQuestion", peers.told[0][1]).number
    questions.answered(peers.named("c"), OperatorAnswer(number, b""))
    assert ends == []
    questions.answered(peers.named("b"), OperatorAnswer(number, b"me"))
    assert ends == [{"c": b"", "b": b"me"}]
    assert questions.wake_at() is None


def test_an_answer_to_another_question_or_a_second_one_ends_nothing(
    questions: OperatorQuestions, peers: Peers
):
    number, ends = asked(questions, peers)
    b, c, old = peers.present
    questions.answered(b, OperatorAnswer(number + 1, b"x"))
    questions.answered(b, OperatorAnswer(number, b"first"))
    questions.answered(b, OperatorAnswer(number, b"second"))
    questions.answered(old, OperatorAnswer(number, b"was not asked"))
    assert ends == []
    questions.answered(c, OperatorAnswer(number, b"too"))
    questions.answered(c, OperatorAnswer(number, b"late"))
    assert ends == [{"b": b"first", "c": b"too"}]


def test_a_peer_that_goes_or_is_silent_is_not_waited_for(
    questions: OperatorQuestions, peers: Peers
):
    number, ends = asked(questions, peers)
    b, c, _ = peers.present
    questions.answered(b, OperatorAnswer(number, b"me"))
    questions.peer_down(c)
    assert ends == [{"b": b"me"}]
    number, ends = asked(questions, peers)
    questions.answered(c, OperatorAnswer(number, b"me"))
    questions.advance(NOW_MS + PATIENCE_MS - 1)
    assert (ends, questions.wake_at()) == ([], NOW_MS + PATIENCE_MS)
    questions.advance(NOW_MS + PATIENCE_MS)
    assert ends == [{"c": b"me"}]
    questions.answered(b, OperatorAnswer(number, b"late"))
    assert len(ends) == 1


def test_without_peers_a_question_ends_at_once():
    peers = Peers(old=PeerVersion.HAS_BRIDGES)
    ends: list[Answers] = []
    OperatorQuestions(cast("PeerRegistry", peers)).ask(b"who?", ends.append, NOW_MS)
    assert (ends, peers.told) == ([{}], [])


def test_numbers_of_questions_are_not_those_of_an_earlier_run(
    questions: OperatorQuestions, peers: Peers
):
    number, _ = asked(questions, peers)
    following, _ = asked(questions, peers)
    again = OperatorQuestions(cast("PeerRegistry", peers))
    again.ask(b"who?", lambda _: None, NOW_MS + 1)
    later = cast("OperatorQuestion", peers.told[0][1]).number
    assert number < following < later


def test_a_question_is_answered_when_the_responder_has_the_answer(
    questions: OperatorQuestions, peers: Peers
):
    b = peers.named("b")
    questions.asked(b, OperatorQuestion(7, b"who?"))
    assert peers.told == [("b", OperatorAnswer(7, b""))]  # it has no HTTP API
    peers.told.clear()
    waiting: list[Any] = []
    questions.responder = lambda question, answer: waiting.append((question, answer))
    questions.asked(b, OperatorQuestion(8, b"where?"))
    [(question, answer)] = waiting
    assert (question, peers.told) == (b"where?", [])
    answer(b"here")
    assert peers.told == [("b", OperatorAnswer(8, b"here"))]
