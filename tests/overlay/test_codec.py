"""The messages between peers as bytes: what is written is read, what is damaged is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.model.errors import PeerProtocolError
from nearcast.overlay import messages as m
from nearcast.overlay.bounds import Extent
from nearcast.overlay.events import EventBatch
from nearcast.overlay.live.codec import (
    HEAD,
    ID_BYTES,
    MOST_EVENTS,
    EnvelopeDecoder,
    FrameReader,
    encode_envelope,
    encode_frame,
)

ME = "10.0.0.1:7000/00"
EXTENT = Extent((0.0, 0.0), (100.0, 100.0))
DECODER = EnvelopeDecoder(ME, {0: EXTENT, 3: EXTENT})

_names = st.text(st.characters(min_codepoint=33, max_codepoint=1_000), min_size=1, max_size=30)
_addresses = st.builds(m.Address, _names, st.integers(-1, 2**31))
_numbers = st.integers(0, 2**48)
_levels = st.integers(0, 64)
_coordinates = st.floats(0.0, 100.0)


@st.composite
def _boxes(draw):
    pairs = [sorted((draw(_coordinates), draw(_coordinates))) for _ in range(2)]
    if draw(st.booleans()):
        pairs[0] = [-np.inf, np.inf]
    return tuple(float(low) for low, _ in pairs), tuple(float(high) for _, high in pairs)


_entries = st.builds(m.MemberEntry, _addresses, _boxes(), st.integers(0, 64))
_several = st.lists(_entries, max_size=4).map(tuple)
_known = st.lists(_addresses, max_size=4).map(tuple)
_maybe = st.none() | _addresses
_handovers = st.builds(
    m.GroupHandover,
    st.lists(st.builds(m.Grant, _levels, _several), max_size=3).map(tuple),
    _maybe,
    _numbers,
    _numbers,
    _maybe,
    st.none() | _numbers,
    st.booleans(),
    _levels,
    _known,
)


@st.composite
def _batches(draw):
    count = draw(st.integers(1, 5))
    boxes = [draw(_boxes()) for _ in range(count)]
    lows = np.array([low for low, _ in boxes])
    highs = lows if draw(st.booleans()) else np.array([high for _, high in boxes])
    return EventBatch(
        tuple(draw(st.binary(min_size=ID_BYTES, max_size=ID_BYTES)) for _ in range(count)),
        lows,
        highs,
        tuple(draw(st.binary(max_size=20)) for _ in range(count)),
        np.array([draw(st.integers(0, 255)) for _ in range(count)], dtype=np.int64),
    )


BODIES = {
    m.Join: st.builds(
        m.Join,
        _addresses,
        _entries,
        _levels,
        _numbers,
        _numbers,
        _maybe,
        st.none() | _levels,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        _levels,
    ),
    m.Ask: st.builds(m.Ask, _entries, _numbers),
    m.Answer: st.builds(m.Answer, _numbers, st.floats(0) | st.just(np.inf), st.booleans()),
    m.Adopt: st.builds(m.Adopt, _levels, _numbers, _several, _known, _known, st.none() | _numbers),
    m.MemberReport: st.builds(
        m.MemberReport, _levels, _entries, _numbers, _maybe, _levels, _numbers
    ),
    m.GroupHandover: _handovers,
    m.Returned: st.builds(m.Returned, _handovers),
    m.Replace: st.builds(m.Replace, _levels, _entries, _numbers, _levels),
    m.MemberLeft: st.builds(m.MemberLeft, _levels, _levels),
    m.Unknown: st.builds(m.Unknown, _levels),
    m.Relocate: st.builds(m.Relocate, _levels),
    m.Greet: st.builds(m.Greet, _addresses, st.booleans()),
    m.Meet: st.builds(m.Meet, _addresses, _levels),
    m.Events: st.builds(m.Events, _batches(), st.booleans(), st.none() | _numbers),
    m.Barren: st.builds(m.Barren, st.lists(_boxes(), max_size=4).map(tuple), _numbers),
    m.Refused: st.builds(m.Refused, _names, _numbers),
    m.AskBoxes: st.just(m.AskBoxes()),
    m.GroupBoxes: st.builds(m.GroupBoxes, _several),
}
ENVELOPES = st.builds(
    m.Envelope,
    st.builds(m.Address, st.just(ME), st.integers(-1, 2**31)),
    _addresses,
    st.one_of(*BODIES.values()),
)


def test_every_message_of_the_tree_has_a_form():
    assert set(BODIES) == set(m.Body.__args__)


def _read(frame: bytes) -> tuple[int, m.Envelope]:
    [(kind, body)] = FrameReader().read(frame)
    return DECODER.decode(kind, body)


@given(ENVELOPES)
def test_what_is_written_is_read(envelope):
    space, found = _read(encode_envelope(3, envelope))
    assert space == 3
    assert found[:2] == envelope[:2]
    ours, theirs = envelope.body, found.body
    if not isinstance(ours, m.Events):
        assert theirs == ours
        return
    assert isinstance(theirs, m.Events)
    assert (theirs.rising, theirs.asks) == (ours.rising, ours.asks)
    assert (theirs.batch.ids, theirs.batch.payloads) == (ours.batch.ids, ours.batch.payloads)
    for name in ("lows", "highs", "hops"):
        assert np.array_equal(getattr(theirs.batch, name), getattr(ours.batch, name))


@given(ENVELOPES, st.data())
def test_a_damaged_message_is_refused_or_is_a_message_of_the_space(envelope, data):
    frame = bytearray(encode_envelope(0, envelope))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(HEAD.size, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    kind, body = frame[4], bytes(frame[HEAD.size :])
    try:
        _, found = DECODER.decode(kind, body)
    except PeerProtocolError:
        return
    for box in _all_boxes(found.body):
        assert EXTENT.is_sound(box)
    if isinstance(found.body, m.Events):
        assert (found.body.batch.lows <= found.body.batch.highs).all()


def _all_boxes(value):
    if isinstance(value, m.MemberEntry):
        yield value.box
    elif isinstance(value, m.Barren):
        yield from value.boxes
    elif isinstance(value, tuple):
        for one in value:
            yield from _all_boxes(one)
    elif not isinstance(value, EventBatch):
        for name in getattr(value, "__slots__", ()):
            yield from _all_boxes(getattr(value, name))


@given(st.lists(ENVELOPES, max_size=4), st.data())
def test_frames_are_found_in_any_portions(envelopes, data):
    stream = b"".join(encode_envelope(0, one) for one in envelopes)
    reader, found = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += reader.read(stream[:size])
        stream = stream[size:]
    assert len(found) == len(envelopes)
    assert [DECODER.decode(*one)[1].sender for one in found] == [one.sender for one in envelopes]


@pytest.mark.parametrize(
    "body",
    [
        m.MemberReport(1, m.MemberEntry(m.Address("a", 0), ((0.0,), (1.0,))), 3),
        m.MemberReport(1, m.MemberEntry(m.Address("a", 0), ((0.0, np.nan), (1.0, 1.0))), 3),
        m.MemberReport(1, m.MemberEntry(m.Address("a", 0), ((5.0, 5.0), (1.0, 1.0))), 3),
        m.MemberReport(1, m.MemberEntry(m.Address("a", 0), ((500.0, 0.0), (600.0, 1.0))), 3),
        m.Adopt(1, 1, (m.MemberEntry(m.Address("a", 0), ((0.0,), (1.0,))),), (), ()),
        m.Barren((((0.0,), (1.0,)),), 1),
        m.MemberLeft(65),
        m.Meet(m.Address("", 0)),
        m.Meet(m.Address("a" * 301, 0)),
    ],
)
def test_what_the_tree_could_not_bear_is_refused(body):
    frame = encode_envelope(0, m.Envelope(m.Address(ME, 0), m.Address("b", 0), body))
    with pytest.raises(PeerProtocolError):
        _read(frame)


def _events(**changed):
    parts = {
        "ids": (bytes(ID_BYTES),),
        "lows": np.zeros((1, 2)),
        "highs": np.ones((1, 2)),
        "payloads": (b"",),
        "hops": np.zeros(1, dtype=np.int64),
        **changed,
    }
    return m.Events(EventBatch(**parts), rising=False)


@pytest.mark.parametrize(
    "body",
    [
        _events(ids=(b"short",)),
        _events(lows=np.zeros((1, 3)), highs=np.ones((1, 3))),
        _events(lows=np.full((1, 2), np.nan)),
        _events(lows=np.full((1, 2), 2.0)),
        _events(payloads=(b"", b"")),
        _events(hops=np.zeros(2, dtype=np.int64)),
        _events(
            ids=(), payloads=(), lows=np.zeros((0, 2)), highs=np.zeros((0, 2)), hops=np.zeros(0)
        ),
        _events(ids=(bytes(ID_BYTES),) * (MOST_EVENTS + 1)),
    ],
)
def test_events_that_contradict_themselves_are_refused(body):
    frame = encode_envelope(0, m.Envelope(m.Address(ME, 0), m.Address("b", 0), body))
    with pytest.raises(PeerProtocolError):
        _read(frame)


def test_an_unknown_kind_an_unknown_space_and_an_empty_body_are_refused():
    frame = encode_envelope(1, m.Envelope(m.Address(ME, 0), m.Address("b", 0), m.Unknown(1)))
    with pytest.raises(PeerProtocolError, match="message of a space"):
        _read(frame)
    for kind, body in ((200, b"\0"), (frame[4], b"")):
        with pytest.raises(PeerProtocolError):
            DECODER.decode(kind, body)


def test_a_frame_that_is_too_large_or_empty_is_refused_before_it_is_whole():
    with pytest.raises(PeerProtocolError, match="a frame of 4294967295 bytes"):
        FrameReader().read(b"\xff\xff\xff\xff\x01")
    with pytest.raises(PeerProtocolError):
        FrameReader().read(b"\0\0\0\0\x01")
    assert FrameReader(most=10).read(encode_frame(1, bytes(9))) == [(1, bytes(9))]
    with pytest.raises(PeerProtocolError):
        FrameReader(most=10).read(encode_frame(1, bytes(10)))
