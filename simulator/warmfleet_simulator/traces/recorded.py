"""Decisions that a router recorded, as `warmfleet record` writes them: one JSON object per line.

    {"decided_at": 1763820000.25, "prompt_tokens": 812, "output_tokens": 57, "block_size_tokens": 16,
     "prefix": "9f3a..."}

The fields are those of a decision in `/internal/decisions`; others are ignored. `prefix` has the marks of the
prompt (`RecordedPrefix`) in hexadecimal, and is null where the router knew no tokenizer.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from warmfleet_contracts.cache.recorded_prefix import MARK_BYTES, MOST_MARKS, marked_blocks
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment
from warmfleet_simulator.traces.trace_format import MAX_TOKENS, Entry, TraceFormat, require_tokens


class RecordedRequest(msgspec.Struct, frozen=True):
    """What of a decision is needed to replay its request."""

    decided_at: float
    """Unix time in seconds."""
    prompt_tokens: int
    output_tokens: int
    block_size_tokens: int | None = None
    prefix: str | None = None


_decoder: Final = msgspec.json.Decoder(RecordedRequest)


def _entry(number: int, text: bytes) -> Entry:
    line = _decoder.decode(text)
    if not 0 <= line.decided_at < 1e12:
        raise ValueError(f"decided_at {line.decided_at:g} is no time in seconds")
    require_tokens(prompt_tokens=line.prompt_tokens, output_tokens=line.output_tokens)
    return Entry(
        at_ms=line.decided_at * 1e3,
        time=f"decided_at {line.decided_at:.15g}",
        prompt=tuple(_segments(number, line)),
        output_tokens=line.output_tokens,
    )


def _segments(number: int, line: RecordedRequest) -> Iterator[Segment]:
    """Each piece up to a mark has the mark as its id; what follows is shared with no other request."""
    left = line.prompt_tokens
    if line.prefix is not None:
        block_size = line.block_size_tokens or 0
        if not 1 <= block_size <= MAX_TOKENS:
            raise ValueError(f"block_size_tokens {block_size} is not between 1 and {MAX_TOKENS}")
        marks, before = _marks(line.prefix), 0
        # Several prompts count as one, and only the first is marked: it may have fewer tokens, never more.
        for block, mark in zip(marked_blocks(left // block_size), marks, strict=False):
            tokens = (block - before) * block_size
            yield Segment(mark % FIRST_ANSWER_ID, tokens)
            left, before = left - tokens, block
    if left:
        yield Segment(number % FIRST_ANSWER_ID, left)


def _marks(prefix: str) -> list[int]:
    if len(prefix) > 2 * MARK_BYTES * MOST_MARKS or len(prefix) % (2 * MARK_BYTES):
        raise ValueError(f"prefix has {len(prefix)} digits, which are no marks of {2 * MARK_BYTES}")
    try:
        content = bytes.fromhex(prefix)
    except ValueError as error:
        raise ValueError(f"prefix is not hexadecimal: {error}") from error
    if 2 * len(content) != len(prefix):
        raise ValueError("prefix is not hexadecimal: it has spaces")
    return [
        int.from_bytes(content[start : start + MARK_BYTES], "big")
        for start in range(0, len(content), MARK_BYTES)
    ]


RECORDED: Final = TraceFormat(
    name="recorded decisions (JSON lines with decided_at)",
    recognises=lambda line: line.lstrip().startswith(b"{") and b'"decided_at"' in line,
    entry=_entry,
)
