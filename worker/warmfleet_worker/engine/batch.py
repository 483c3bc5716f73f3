"""What one engine step computes: the boundary between scheduler and runner."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import msgspec

from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.token_counts import TokenCounts


class SampleRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the next token from the logits of a chunk's last token, the last known one of its sequence."""

    parameters: SamplingParameters
    output_index: int
    """How many tokens the sequence has generated before this one."""
    token_counts: TokenCounts | None = None
    """Of prompt and output so far, exactly if a penalty reads them. Valid until the step is applied."""


class ScoreRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the log probability of the prompt's next token at consecutive tokens of a chunk."""

    first: int
    """Index in the chunk."""
    next_token_ids: Seq[int]
    """The prompt's next token after each of them."""
    top: int
    """Number of most likely tokens to return with each."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of a step: consecutive tokens whose KV is computed and written.

    A decode is such a share, too: `is_decode`.
    """

    sequence_id: int
    token_ids: Seq[int]
    first_position: int
    """Position of `token_ids[0]` in the sequence."""
    block_ids: Seq[int]
    """The sequence's block table from position 0, long enough for this chunk."""
    sample: SampleRequest | None
    """None while the prompt is not complete."""
    score: ScoreRequest | None = None
    """Set if the request asks for the prompt's log probabilities and this chunk computes some."""

    @property
    def is_decode(self) -> bool:
        """Whether this is the one token of a sequence whose next token is asked for."""
        return len(self.token_ids) == 1 and self.sample is not None


class StepBatch(msgspec.Struct, frozen=True, gc=False):
    """All chunks of one step, in a fixed order."""

    chunks: tuple[Chunk, ...]

    @property
    def scheduled_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class ChunkResult(msgspec.Struct, frozen=True, gc=False):
    """The runner's result for one chunk.

    A step may bring several tokens, such as those of a draft that it has verified. Of them as of the last
    one keys and values are not computed yet: they are the sequence's next chunk.
    """

    sequence_id: int
    finite: bool
    """Whether every hidden state of the chunk was finite. If not, its blocks are never committed."""
    token_ids: tuple[int, ...] = ()
    """The next tokens, at least one, exactly when the chunk asked for a sample and was finite."""
    logprobs: TokenLogprobs | None = None
    """Of `token_ids`, exactly when there are some and their parameters request them."""
    prompt_logprobs: TokenLogprobs | None = None
    """Of `score.next_token_ids`, exactly when the chunk has a score request and was finite."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results in the order of the batch's chunks, and how long the step took."""

    chunks: tuple[ChunkResult, ...]
    seconds: float


class StepInFlight(Protocol):
    """A step that a runner computes."""

    def finish(self) -> StepResult:
        """Wait for its end. Also after an error, the step is over and another one may begin."""


def finite_chunks(finite_rows: Seq[bool] | Seq[int], chunks: Seq[Chunk]) -> list[bool]:
    """Whether all rows of each chunk are finite; rows are the tokens of all chunks, in order."""
    verdicts: list[bool] = []
    start = 0
    for chunk in chunks:
        end = start + len(chunk.token_ids)
        verdicts.append(all(finite_rows[start:end]))
        start = end
    return verdicts
