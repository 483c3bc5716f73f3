"""SPDY/3.1 frames, as kubectl's port-forward puts them into a WebSocket."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.kubelet_api.spdy import (
    DICTIONARY,
    PING,
    SYN_STREAM,
    ControlFrame,
    DataFrame,
    SpdyError,
    SpdyReader,
    SpdyWriter,
)


class ClientWriter(SpdyWriter):
    """Encodes a client's frames: it opens streams."""

    def __init__(self) -> None:
        super().__init__()
        self._client_deflate = zlib.compressobj(zdict=DICTIONARY)

    def syn_stream(self, stream, headers):
        texts = [text.encode() for pair in headers.items() for text in pair]
        plain = len(headers).to_bytes(4, "big") + b"".join(len(t).to_bytes(4, "big") + t for t in texts)
        block = self._client_deflate.compress(plain) + self._client_deflate.flush(zlib.Z_SYNC_FLUSH)
        return self.control(SYN_STREAM, stream.to_bytes(4, "big") + bytes(6) + block)


names = st.text("abcdefghij-", min_size=1, max_size=8)
opened = st.tuples(
    st.just("open"), st.integers(1, 2**31 - 1), st.dictionaries(names, st.text(max_size=9), max_size=4)
)
sent = st.tuples(st.just("data"), st.integers(1, 2**31 - 1), st.binary(max_size=60), st.booleans())


def test_the_dictionary_is_the_protocols():
    # Length and checksum as in the SPDY/3 draft; a decompressor checks the same number.
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


@given(st.lists(opened | sent, max_size=10), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, piece_bytes):
    writer, reader = ClientWriter(), SpdyReader()
    encoded = b"".join(
        writer.syn_stream(frame[1], frame[2])
        if frame[0] == "open"
        else writer.data(frame[1], frame[2], final=frame[3])
        for frame in frames
    )
    pieces = [encoded[at : at + piece_bytes] for at in range(0, len(encoded), piece_bytes)]
    decoded = [frame for piece in pieces for frame in reader.feed(piece)]
    assert decoded == [
        ControlFrame(SYN_STREAM, frame[1], frame[2]) if frame[0] == "open" else DataFrame(*frame[1:])
        for frame in frames
    ]


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waits_for_more(noise):
    try:
        list(SpdyReader().feed(noise))
    except SpdyError:
        return


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read():
    with pytest.raises(SpdyError, match="16777215 bytes"):
        list(SpdyReader().feed(bytes(4) + b"\x00\xff\xff\xff"))


def test_headers_that_unpack_beyond_the_limit_are_refused():
    bomb = ClientWriter().syn_stream(1, {"a": "x" * 200_000})
    with pytest.raises(SpdyError, match="headers of over"):
        list(SpdyReader().feed(bomb))


def test_a_ping_keeps_its_number():
    (frame,) = SpdyReader().feed(SpdyWriter.control(PING, b"\x00\x00\x00\x07"))
    assert frame == ControlFrame(PING, 7, body=b"\x00\x00\x00\x07")
