"""Events come out whole however the stream was cut."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.openai import RequestError
from warmfleet_router.proxy.sse_splitter import (
    MAX_EVENT_BYTES,
    SseSplitter,
    count_events,
    ends_stream,
    has_server_error,
    is_plain_event,
    is_refused_stream,
    without_leading_comments,
)

ERROR = RequestError("no", status=500, type="server_error", code="engine_error").event()


@given(st.lists(st.sampled_from([b"a", b"\n", b"\n\n", b"data: x\n\n", b": ping\n\n"])), st.data())
def test_however_it_is_cut_the_bytes_are_the_same_and_only_whole_events_come_out(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    splitter, out, position = SseSplitter(), b"", 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        ready = splitter.feed(stream[position : position + size])
        position += size
        assert not ready or ready.endswith(b"\n\n")
        out += ready
        assert b"\n\n" not in splitter.rest()
    assert out + splitter.rest() == stream


def test_an_event_without_an_end_is_passed_on_in_pieces() -> None:
    splitter, out = SseSplitter(), 0
    for _ in range(3 * MAX_EVENT_BYTES // 65_536):
        out += len(splitter.feed(b"x" * 65_536))
        assert len(splitter.rest()) <= MAX_EVENT_BYTES

    assert out >= MAX_EVENT_BYTES


@pytest.mark.parametrize(
    ("data", "from_the_first_event"),
    [
        (b"", b""),
        (b": ping\n\n", b""),
        (b": ping\n\n: ping\n\n", b""),
        (b": ping\n\ndata: 1\n\n: ping\n\n", b"data: 1\n\n: ping\n\n"),
        (b": of the event\ndata: 1\n\n", b": of the event\ndata: 1\n\n"),
        (b": longer than an event may be", b": longer than an event may be"),
    ],
)
def test_comments_before_the_first_event_are_left_out(data: bytes, from_the_first_event: bytes) -> None:
    assert without_leading_comments(data) == from_the_first_event


def test_only_the_servers_own_error_object_counts_as_one() -> None:
    server = RequestError("no", status=500, type="server_error", code="engine_error").event()
    client = RequestError("no", status=400).event()
    text = b"data: " + msgspec.json.encode({"text": server.decode()}) + b"\n\n"

    assert has_server_error(server)
    assert has_server_error(text + server)
    assert not has_server_error(client)
    assert not has_server_error(text + text)


def test_only_a_first_event_of_a_worker_that_is_not_ready_refuses_a_stream() -> None:
    not_ready = RequestError("gone", status=503, type="server_error", code="not_ready").event()
    failed = RequestError("no", status=500, type="server_error", code="engine_error").event()
    text = b'data: {"choices": [{"text": "hi"}]}\n\n'

    assert is_refused_stream(not_ready)
    assert not is_refused_stream(failed)
    assert not is_refused_stream(text + not_ready)
    assert not is_refused_stream(failed + not_ready)
    assert not is_refused_stream(b"")


@given(
    st.lists(
        st.sampled_from([b"data: x\n\n", b": ping\n\n", b": of\ndata: x\n\n", b"data: [DONE]\n\n", ERROR])
    )
)
def test_a_plain_event_is_one_event_that_is_no_error_and_no_end(events: list[bytes]) -> None:
    data = b"".join(events)

    if is_plain_event(data):
        assert (count_events(data), has_server_error(data), ends_stream(data)) == (1, False, False)
    else:
        assert events != [b"data: x\n\n"]
