"""One framing for the event stream and for the engine's socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.framing import FrameReader, frame

LIMIT = 300


def test_a_frame_is_its_length_in_four_little_endian_bytes_and_its_body():
    assert frame(b"abc", max_bytes=LIMIT) == b"\x03\x00\x00\x00abc"
    assert frame(b"", max_bytes=0) == b"\x00\x00\x00\x00"


@given(bodies=st.lists(st.binary(max_size=LIMIT), max_size=8), cuts=st.lists(st.integers(1, 70), min_size=1))
def test_bodies_survive_any_cutting_of_the_stream(bodies, cuts):
    data = b"".join(frame(body, max_bytes=LIMIT) for body in bodies)
    reader, read, position, number = FrameReader(max_bytes=LIMIT), [], 0, 0
    while position < len(data):
        size = cuts[number % len(cuts)]
        read += reader.feed(data[position : position + size])
        position += size
        number += 1
    assert read == bodies


def test_a_frame_beyond_the_limit_is_refused_by_its_length():
    with pytest.raises(ContractError, match="301 bytes exceeds the limit of 300"):
        frame(bytes(LIMIT + 1), max_bytes=LIMIT)
    with pytest.raises(ContractError, match="301 bytes exceeds the limit of 300"):
        list(FrameReader(max_bytes=LIMIT).feed((LIMIT + 1).to_bytes(4, "little")))


def test_frames_before_a_refused_one_are_read_and_a_reader_that_stops_early_loses_none():
    first, second = frame(b"first", max_bytes=LIMIT), frame(b"second", max_bytes=LIMIT)
    reader = FrameReader(max_bytes=LIMIT)
    for body in reader.feed(first + second):
        assert body == b"first"
        break
    assert list(reader.feed(b"")) == [b"second"]

    bodies = reader.feed(first + b"\xff\xff\xff\xff")
    assert next(bodies) == b"first"
    with pytest.raises(ContractError):
        next(bodies)
