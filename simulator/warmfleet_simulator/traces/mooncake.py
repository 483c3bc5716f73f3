"""Mooncake's format: one JSON object per line.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

`timestamp` is in milliseconds; each of `hash_ids` stands for one block of the prompt, of 512 tokens but for
the last, and for all blocks before it (Qin et al. 2024, arXiv:2407.00079; the traces are in
github.com/kvcache-ai/Mooncake, FAST25-release/traces).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment
from warmfleet_simulator.traces.trace_format import Entry, TraceFormat, require_tokens

BLOCK_TOKENS: Final = 512
"""Tokens of one block of a Mooncake trace."""


class _Line(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


_decoder: Final = msgspec.json.Decoder(_Line)


def _entry(_number: int, text: bytes) -> Entry:
    line = _decoder.decode(text)
    if not 0 <= line.timestamp < 1e15:
        raise ValueError(f"timestamp {line.timestamp:g} is no time in milliseconds")
    require_tokens(input_length=line.input_length, output_length=line.output_length)
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != blocks:
        raise ValueError(
            f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens, which are {blocks} blocks "
            f"of {BLOCK_TOKENS}"
        )
    if not all(0 <= hash_id < FIRST_ANSWER_ID for hash_id in line.hash_ids):
        raise ValueError(f"a hash_id is not between 0 and {FIRST_ANSWER_ID - 1}")
    return Entry(
        at_ms=line.timestamp,
        time=f"timestamp {line.timestamp:.15g}",
        prompt=tuple(_segments(line)),
        output_tokens=line.output_length,
    )


def _segments(line: _Line) -> Iterator[Segment]:
    left = line.input_length
    for hash_id in line.hash_ids:
        yield Segment(hash_id, min(left, BLOCK_TOKENS))
        left -= BLOCK_TOKENS


MOONCAKE: Final = TraceFormat(
    name="Mooncake's (JSON lines with hash_ids)",
    recognises=lambda line: line.lstrip().startswith(b"{"),
    entry=_entry,
)
