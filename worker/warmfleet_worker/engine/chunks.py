"""A sequence's share of a step, as the runner gets it."""

from warmfleet_worker.engine.batch import Chunk, SampleRequest, ScoreRequest
from warmfleet_worker.engine.sequence import Sequence
from warmfleet_worker.kv_cache.block_table import blocks_for


def chunk_of(sequence: Sequence, tokens: int, block_size_tokens: int) -> Chunk:
    """The next `tokens` of a sequence that has the blocks for them."""
    first = sequence.computed_tokens
    end = first + tokens
    sample = None
    if sequence.samples_after(tokens):
        sample = SampleRequest(sequence.sampling, sequence.output_tokens, sequence.token_counts)
    return Chunk(
        sequence_id=sequence.sequence_id,
        token_ids=sequence.token_ids[first:end],
        first_position=first,
        block_ids=sequence.table.ids(blocks_for(end, block_size_tokens)),
        sample=sample,
        score=_score_request(sequence, first, end),
    )


def _score_request(sequence: Sequence, first: int, end: int) -> ScoreRequest | None:
    """The prompt log probabilities that tokens `first` to `end` give and that are not reported yet."""
    start = max(first, sequence.scored_tokens)
    stop = min(end, sequence.prompt_tokens - 1)
    if sequence.sampling.prompt_logprobs is None or start >= stop:
        return None
    return ScoreRequest(
        first=start - first,
        next_token_ids=tuple(sequence.token_ids[start + 1 : stop + 1]),
        top=sequence.sampling.prompt_logprobs,
    )
