"""One request of a trace.

A trace has no texts. A prompt is given by what it shares with others: segments of so many tokens each, and
equal segments at equal places are equal text. Each token of a segment gets the segment's id as its token id,
so that router and worker hash the prompt as they hash any other.
"""

from array import array
from typing import Final, NamedTuple

import msgspec

FIRST_ANSWER_ID: Final = 2**31
"""Ids of segments are below, those of answers at and above."""


class Segment(NamedTuple):
    """A piece of a prompt: `tokens` tokens with one id."""

    segment_id: int
    tokens: int


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """When a request arrives, what its prompt consists of, and how long its answer is."""

    arrival_seconds: float
    """Since the beginning of the trace."""
    prompt: tuple[Segment, ...]
    output_tokens: int
    answer_id: int
    """Id of the answer's tokens: a later prompt that has it as a segment repeats the answer."""

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.prompt)

    def token_ids(self) -> "array[int]":
        """The prompt as u32."""
        token_ids = array("I")
        for segment in self.prompt:
            token_ids += array("I", (segment.segment_id,)) * segment.tokens
        return token_ids
