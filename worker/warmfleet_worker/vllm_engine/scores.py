"""Log probabilities as vLLM returns them, in the compact form of engine messages. Pure."""

from array import array
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from warmfleet_worker.engine.logprobs import TokenLogprobs

SCORES_BYTES: Final = 2**30
"""Memory for the log probabilities of a prompt, where vLLM computes those of a step at once."""
_BYTES_PER_SCORE: Final = 8
"""Of each token of the vocabulary: a logit and its log probability, in float32."""


def scores_bytes(tokens: int, vocabulary_size: int) -> int:
    """Memory that vLLM takes for the log probabilities of so many tokens of a prompt."""
    return tokens * vocabulary_size * _BYTES_PER_SCORE


class Score(NamedTuple):
    """Of one candidate token at one position: vLLM's `Logprob` without its text."""

    logprob: float
    rank: int
    """From 1."""


Position = Mapping[int, Score]
"""The token at a position, and those most likely there."""


def token_logprobs(positions: Iterable[tuple[int, Position]], top: int) -> TokenLogprobs | None:
    """Each position's token with its scores; None without positions.

    vLLM returns the token itself besides the `top` most likely ones unless it is one of them.
    """
    values, top_ids, top_values = array("f"), array("I"), array("f")
    for token_id, scores in positions:
        values.append(scores[token_id].logprob)
        ranked = sorted(scores.items(), key=lambda item: (-item[1].logprob, item[0]))[:top]
        top_ids.extend(candidate for candidate, _ in ranked)
        top_values.extend(score.logprob for _, score in ranked)
    if not values:
        return None
    return TokenLogprobs(top, values.tobytes(), top_ids.tobytes(), top_values.tobytes())
