"""Recorded decisions as a trace: marks become segments; impossible lines are refused by number and field."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.recorded_prefix import MOST_MARKS, RecordedPrefix, marked_blocks
from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.traces.trace_file import TraceFile

GOOD: dict[str, Any] = {
    "decided_at": 1_763_820_000.25,
    "prompt_tokens": 100,
    "output_tokens": 7,
    "block_size_tokens": 16,
    "prefix": "00000005" + "80000006",
}


def line(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes}) + "\n"


def read(folder: Path, content: str) -> list[TraceRequest]:
    path = folder / "ring.jsonl"
    path.write_text(content)
    with TraceFile(path) as file:
        return list(read_trace(file))


def hashes(count: int) -> list[BlockHash]:
    return [BlockHash(os.urandom(16)) for _ in range(count)]


def shared_tokens(first: TraceRequest, second: TraceRequest) -> int:
    tokens = 0
    for one, other in zip(first.prompt, second.prompt, strict=False):
        if one != other:
            break
        tokens += one.tokens
    return tokens


def recorded(prompts: Sequence[Sequence[BlockHash]]) -> str:
    return "".join(
        line(prompt_tokens=16 * len(prompt) + 3, prefix=RecordedPrefix.of(prompt, 16).marks.hex())
        for prompt in prompts
    )


def test_a_mark_is_a_segment_up_to_its_block_and_the_rest_is_the_requests_own(tmp_path: Path) -> None:
    first, second = read(tmp_path, line() + line(decided_at=1_763_820_002.75))

    assert first.prompt[:2] == second.prompt[:2] == ((5, 16), (6, 16))
    assert first.prompt[2].tokens == second.prompt[2].tokens == 68
    assert first.prompt[2].segment_id != second.prompt[2].segment_id
    assert second.arrival_seconds == 2.5


@pytest.mark.parametrize("shared", [0, 1, 63, 64, 65, 100, 1000, 5000])
def test_a_shared_prefix_is_known_within_a_thirty_second(tmp_path: Path, shared: int) -> None:
    head = hashes(shared)

    first, second = read(tmp_path, recorded([head + hashes(900), head + hashes(40)]))

    assert first.prompt_tokens == 16 * (shared + 900) + 3
    assert 16 * shared * 31 / 32 <= shared_tokens(first, second) <= 16 * shared


def test_marks_are_bounded_and_lie_on_the_same_blocks_of_all_prompts() -> None:
    longest = list(marked_blocks(10**9))

    assert len(longest) == MOST_MARKS
    assert longest[:64] == list(range(1, 65))
    for blocks in (0, 1, 64, 65, 129, 5000):
        assert list(marked_blocks(blocks)) == [block for block in longest if block <= blocks]


def test_a_request_without_marks_shares_nothing(tmp_path: Path) -> None:
    requests = read(tmp_path, line(prefix=None, block_size_tokens=None) * 2)

    assert shared_tokens(*requests) == 0
    assert [request.prompt_tokens for request in requests] == [100, 100]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (line(decided_at=1_763_819_999.25), "decided_at 1763819999.25 is below 1763820000.25"),
        (line(decided_at=-1), "decided_at -1 is no time"),
        (line(prompt_tokens=0), "prompt_tokens 0 is not between"),
        (line(output_tokens=2**40), "output_tokens 1099511627776 is not between"),
        (line(output_tokens=None), "output_tokens"),
        (line(block_size_tokens=0), "block_size_tokens 0 is not between"),
        (line(block_size_tokens=None), "block_size_tokens 0 is not between"),
        (line(prefix="00" * 3), "prefix has 6 digits"),
        (line(prefix="00" * 4 * (MOST_MARKS + 1)), "prefix has 4104 digits"),
        (line(prefix="x" * 8), "prefix is not hexadecimal"),
        (line(prefix="00 00 00"), "prefix is not hexadecimal"),
        (line()[:50], "line 2"),
    ],
)
def test_a_line_that_no_ring_has_is_refused_by_its_number(tmp_path: Path, second: str, reason: str) -> None:
    with pytest.raises(TraceError, match="line 2") as refused:
        read(tmp_path, line() + second)
    assert reason in str(refused.value)


@pytest.mark.parametrize("content", ["hello\n", "[1, 2]\n", "\n\n\x00\n"])
def test_a_file_of_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError, match=r"ring\.jsonl, line \d: the format is neither recorded .* Mooncake"):
        read(tmp_path, content)
