"""Answers of servers are read to a bound: whole bodies, and streams line by line."""

import pytest

from warmfleet_runtime.answers import AnswerError, Content, LineSplitter


def test_content_counts_all_its_pieces() -> None:
    content = Content(5)
    content.add(b"abc")
    content.add(b"de")
    assert content.whole() == b"abcde"

    with pytest.raises(AnswerError, match=r"^answers more than 5 bytes$"):
        content.add(b"f")


def test_lines_end_where_http_ends_them_and_not_inside_a_text() -> None:
    splitter = LineSplitter(100)
    pieces = [b"data: a\xe2\x80", b"\xa8b\x0b\xc2\x85c\r", b"\n\r\ndata: ", b"d\ne", b"f\rg"]

    lines = [line for piece in pieces for line in splitter.lines(piece) if line]

    assert lines == [b"data: a\xe2\x80\xa8b\x0b\xc2\x85c", b"data: d", b"ef"]


def test_a_line_has_a_bound_and_a_stream_has_none() -> None:
    splitter = LineSplitter(4)
    assert [line for _ in range(1000) for line in splitter.lines(b"ab\ncd")][:3] == [b"ab", b"cdab", b"cdab"]

    with pytest.raises(AnswerError, match=r"^sends a line of more than 4 bytes$"):
        list(splitter.lines(b"xyz"))


def test_lines_before_one_that_is_too_long_are_given() -> None:
    lines = LineSplitter(4).lines(b"abcd\nabcde\n")

    assert next(lines) == b"abcd"
    with pytest.raises(AnswerError, match="sends a line of more than 4 bytes"):
        next(lines)
