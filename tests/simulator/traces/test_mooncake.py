"""Traces in Mooncake's format: read line by line, and refused with the line's number."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.traces.trace_file import MAX_LINE_BYTES, TraceFile

GOOD: dict[str, Any] = {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [5, 6, 7]}


def line(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes}) + "\n"


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], list[TraceRequest]]:
    def read_bytes(content: bytes) -> list[TraceRequest]:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(content)
        with TraceFile(path) as file:
            return list(read_trace(file))

    return read_bytes


Read = Callable[[bytes], list[TraceRequest]]


def test_a_line_is_a_prompt_of_blocks_of_which_the_last_is_partial(read: Read) -> None:
    (request,) = read(line().encode())

    assert request.prompt_tokens == 1100
    assert request.token_ids().tolist() == [5] * 512 + [6] * 512 + [7] * 76
    assert request.output_tokens == 7


def test_the_first_request_arrives_at_zero_and_the_others_after_it(read: Read) -> None:
    requests = read((line() + "\n" + line(timestamp=3000) + line(timestamp=4500.5)).encode())

    assert [request.arrival_seconds for request in requests] == [0, 0, 1.5005]


def test_answers_have_ids_of_their_own(read: Read) -> None:
    requests = read((line() * 3).encode())

    assert len({request.answer_id for request in requests}) == 3
    assert all(request.answer_id >= 2**31 for request in requests)


def test_a_compressed_trace_is_the_same_trace(read: Read) -> None:
    content = (line() + line(timestamp=9000, hash_ids=[5, 6, 8])).encode()

    assert read(gzip.compress(content)) == read(content)


def test_an_empty_trace_has_no_requests(read: Read) -> None:
    assert read(b"") == []


def test_reading_is_lazy_and_its_progress_known(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line() * 50_000)
    with TraceFile(path) as file:
        requests = read_trace(file)
        next(requests)
        assert 0 < file.read_bytes < file.total_bytes / 10
        for _ in requests:
            pass
        assert file.read_bytes == file.total_bytes


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (line(timestamp=2999), "timestamp 2999 is below 3000"),
        (line(timestamp=-1), "timestamp -1 is no time"),
        (line(timestamp=1e300), "is no time"),
        (line(input_length=0, hash_ids=[]), "input_length 0 is not between"),
        (line(input_length=2**40), "input_length 1099511627776 is not between"),
        (line(output_length=0), "output_length 0 is not between"),
        (line(input_length=512), "3 hash_ids for 512 tokens, which are 1 blocks"),
        (line(hash_ids=[5, 6, 2**31]), "a hash_id is not between"),
        (line(hash_ids=[5, 6, -1]), "a hash_id is not between"),
        (line(hash_ids="no"), "hash_ids"),
        ('{"timestamp": 3000}\n', "input_length"),
        (line()[:40], "line 2"),
        ("\udcff\n", "line 2"),
        ("[" * 5000 + "\n", "line 2"),
        (" " * (MAX_LINE_BYTES + 1) + "\n", "longer than"),
    ],
)
def test_a_line_that_no_trace_has_is_refused_by_its_number(read: Read, second: str, reason: str) -> None:
    content = (line() + second).encode(errors="surrogateescape")

    with pytest.raises(TraceError, match="line 2") as refused:
        read(content)
    assert reason in str(refused.value)


def test_a_compressed_trace_that_is_cut_off_is_refused_by_the_line(read: Read) -> None:
    lines = "".join(
        line(timestamp=3000 + 7 * number, output_length=number % 90 + 1) for number in range(4000)
    )
    content = gzip.compress(lines.encode())

    with pytest.raises(TraceError, match=r"line \d+: the file is cut off or damaged"):
        read(content[: len(content) // 2])


def test_a_compressed_trace_with_a_damaged_byte_is_refused(read: Read) -> None:
    lines = "".join(line(timestamp=3000 + 7 * number) for number in range(4000))
    content = bytearray(gzip.compress(lines.encode()))
    content[len(content) // 2] ^= 0xFF

    with pytest.raises(TraceError, match=r"line \d+"):
        read(bytes(content))


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: No such file"):
        TraceFile(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="Is a directory"):
        TraceFile(tmp_path)
