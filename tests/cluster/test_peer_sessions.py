"""The sessions of nodes and of the change feed: typed, restored, told apart."""

from __future__ import annotations

from random import Random

from nearcast.broker import Broker, Session
from nearcast.broker.publish.message import Message, MessageHead
from nearcast.broker.session.session import FEED, PEER_PREFIX, PeerSession
from nearcast.cluster import Cluster


def with_sessions() -> Broker:
    """Return a broker that keeps a message for a node, and one for the feed."""
    node = Broker(with_journal=True)
    node.peering.attach("n2", "theirs", 1)
    for name in ("n2", FEED):
        node.peering.send(name, [Message(MessageHead(b"\0\1a", 1, 1), b"x")])
    return node


def restarted(node: Broker) -> tuple[Broker, Cluster]:
    after = Broker(with_journal=True)
    mesh = Cluster("n1", after, random=Random(1))
    assert after.restore([node.take_journal()], 10) == []
    return after, mesh


def test_a_peer_session_comes_back_with_both_generations():
    before = with_sessions()
    after, _ = restarted(before)
    found = after.session_of(PEER_PREFIX + "n2")
    assert isinstance(found, PeerSession)
    assert found.node_name == "n2"
    assert found.is_peer
    assert found.user_name is None
    assert found.our_generation == before.peering.generation("n2") != ""
    assert found.peer_generation == "theirs"
    assert after.peering.remembers("n2", "theirs")
    assert not after.peering.remembers("n2", "others")


def test_a_client_has_a_plain_session():
    session = Session("ann", 1)
    assert not isinstance(session, PeerSession)
    assert not session.is_peer


def test_the_feed_is_no_node_after_a_restart():
    after, _ = restarted(with_sessions())
    assert after.node_names() == {"n2"}


def test_a_feed_that_is_forgotten_as_if_it_were_a_node_keeps_its_messages():
    after, mesh = restarted(with_sessions())
    for name in (FEED, "n2"):
        mesh.part(name, 20)
    assert after.peering.has_unsettled(FEED)
    assert not after.peering.has_unsettled("n2")
    assert after.session_of(PEER_PREFIX + "n2") is None
