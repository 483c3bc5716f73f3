"""Validation of sequences by the engine itself, independent of the server's validation of requests.

The server validates to explain errors to clients; the engine, so that no message can end it. The ranges are
those of the HTTP API.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.worker_api import HIGHEST_PRIORITY, LOWEST_PRIORITY, MAX_SALT_BYTES
from warmfleet_contracts.openai import MAX_TOP_LOGPROBS
from warmfleet_worker.engine.messages import AddSequences
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.kv_cache.block_table import blocks_for

MAX_STOP_TOKEN_IDS: Final = 1024
"""A request may name 128; the others are the ends of the model."""
MAX_LOGIT_BIASES: Final = 1024
_MAX_COUNT: Final = 2**31
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, _MAX_COUNT),
    "min_p": (0, 1),
    "seed": (0, 2**64 - 1),
    "max_output_tokens": (0, _MAX_COUNT),
    "min_output_tokens": (0, _MAX_COUNT),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
}
"""Both ends belong to the range; NaN is in none."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of one sequence in this engine."""

    context_tokens: int
    """Prompt and output together, by setting or model."""
    total_blocks: int
    block_size_tokens: int
    vocabulary_size: int

    @property
    def pool_tokens(self) -> int:
        return self.total_blocks * self.block_size_tokens


def validation_error(message: AddSequences, prompt: Sequence[int], limits: EngineLimits) -> str:
    """Why sequences of `prompt` can never run here, as text for the client; "" if they can."""
    return (
        _misfit(message, len(prompt), limits)
        or _unknown_token(message, prompt, limits.vocabulary_size)
        or _out_of_range(message)
        or _bad_bias(message.sampling)
        or _bad_logprobs(message)
    )


def _misfit(message: AddSequences, prompt_tokens: int, limits: EngineLimits) -> str:
    if not prompt_tokens:
        return "the prompt has no tokens"
    needed_tokens = prompt_tokens + (message.sampling.max_output_tokens > 0)
    if needed_tokens > limits.context_tokens:
        return (
            f"maximum context length is {limits.context_tokens} tokens, "
            f"the prompt has {prompt_tokens} and leaves no room for an answer"
        )
    if needed_tokens > limits.pool_tokens:
        needed_blocks = blocks_for(needed_tokens, limits.block_size_tokens)
        return (
            f"the request needs {needed_blocks} KV blocks ({needed_tokens} tokens), "
            f"the whole cache has {limits.total_blocks} ({limits.pool_tokens} tokens)"
        )
    return ""


def _unknown_token(message: AddSequences, prompt: Sequence[int], vocabulary_size: int) -> str:
    outside = f"token id lies outside the vocabulary of {vocabulary_size}"
    if max(prompt) >= vocabulary_size:  # none is negative: they came as u32
        return f"a prompt {outside}"
    bias = message.sampling.logit_bias
    if bias and (min(bias) < 0 or max(bias) >= vocabulary_size):
        return f"a bias {outside}"
    # A stop token outside the vocabulary is never generated: engines leave it out.
    if min(message.sampling.stop_token_ids, default=0) < 0:
        return "a stop token id is negative"
    return ""


def _out_of_range(message: AddSequences) -> str:
    for name, (least, most) in _RANGES.items():
        value = getattr(message.sampling, name)
        if not least <= value <= most:
            return f"{name}: expected {least} to {most}, got {value}"
    for sequence in message.sequences:
        if not 0 <= sequence.seed < 2**64:
            return f"seed: expected 0 to {2**64 - 1}, got {sequence.seed}"
    if not HIGHEST_PRIORITY <= message.priority <= LOWEST_PRIORITY:
        return f"priority: expected {HIGHEST_PRIORITY} to {LOWEST_PRIORITY}, got {message.priority}"
    if len(message.salt) > MAX_SALT_BYTES:
        return f"salt: expected at most {MAX_SALT_BYTES} bytes, got {len(message.salt)}"
    if len(message.sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        return f"stop_token_ids: expected at most {MAX_STOP_TOKEN_IDS} ids"
    return ""


def _bad_bias(sampling: SamplingParameters) -> str:
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        return f"logit_bias: expected at most {MAX_LOGIT_BIASES} entries"
    if all(-100 <= bias <= 100 for bias in sampling.logit_bias.values()):
        return ""
    return "logit_bias: expected values of -100 to 100"


def _bad_logprobs(message: AddSequences) -> str:
    for top in (message.sampling.logprobs, message.sampling.prompt_logprobs):
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            return f"expected log probabilities of 0 to {MAX_TOP_LOGPROBS} tokens, got {top}"
    if message.sampling.prompt_logprobs is not None and message.may_read_cache:
        return "the log probabilities of a prompt cannot come from the cache"
    return ""
