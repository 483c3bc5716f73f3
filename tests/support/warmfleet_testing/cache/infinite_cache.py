"""A cache that never evicts, as an oracle of what prompts share."""

from array import array
from collections.abc import Iterable

from warmfleet_simulator.traces.request import TraceRequest


def infinite_hit_rate(requests: Iterable[TraceRequest], block_size_tokens: int) -> float:
    """Share of the prompt tokens that an earlier prompt, or its answer, began with."""
    kept = set[int]()
    cached_tokens = prompt_tokens = 0
    for request in requests:
        prompt = request.token_ids()
        # The last token of an answer is never computed: it is in no block.
        tokens = prompt + array("I", [request.answer_id]) * (request.output_tokens - 1)
        blocks, chain = [], 0
        for end in range(block_size_tokens, len(tokens) + 1, block_size_tokens):
            chain = hash((chain, tokens[end - block_size_tokens : end].tobytes()))
            blocks.append(chain)
        held, longest = 0, (len(prompt) - 1) // block_size_tokens
        while held < longest and blocks[held] in kept:
            held += 1
        kept.update(blocks)
        cached_tokens += held * block_size_tokens
        prompt_tokens += len(prompt)
    return cached_tokens / prompt_tokens
