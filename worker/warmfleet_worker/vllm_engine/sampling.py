"""Sampling parameters of a request as those of vLLM. Pure."""

from typing import Any, Final

from warmfleet_worker.engine.messages import AddSequences
from warmfleet_worker.engine.sampling_params import SamplingParameters

_SEED_MASK: Final = 2**63 - 1
"""vLLM's seeds are signed."""
_NEXT_TO_ZERO: Final = 1e-9
"""For a `top_p` of the most likely token alone: vLLM refuses 0."""


def sampling_arguments(message: AddSequences, seed: int, vocabulary_size: int) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams` for one sequence of `message`.

    The model's end tokens are among the stop tokens already, unless the request ignores them. vLLM
    generates at least one token: that of a request for none is dropped when it comes.
    """
    sampling = message.sampling
    return {
        # vLLM raises what is above 0 to 0.01 at least.
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_p": sampling.top_p or _NEXT_TO_ZERO,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": seed & _SEED_MASK,
        "max_tokens": max(sampling.max_output_tokens, 1),
        "min_tokens": min(sampling.min_output_tokens, max(sampling.max_output_tokens, 1)),
        "logit_bias": dict(sampling.logit_bias) or None,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        # vLLM refuses a request for one that is never generated.
        "stop_token_ids": sorted(one for one in sampling.stop_token_ids if one < vocabulary_size),
        "ignore_eos": True,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "skip_reading_prefix_cache": not (message.may_read_cache and message.use_prefix_cache),
        "detokenize": False,
    }


def wants_tokens(sampling: SamplingParameters) -> bool:
    """Whether the request takes any of the tokens that vLLM generates."""
    return sampling.max_output_tokens > 0
