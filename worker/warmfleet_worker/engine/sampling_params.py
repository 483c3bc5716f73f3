"""Sampling parameters of one request. No torch: scheduler and server use them too."""

from ctypes import c_float

import msgspec


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen and when a sequence ends. Validated at the HTTP edge."""

    temperature: float = 1.0
    """0 means greedy: the first token id with the highest logit."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    min_p: float = 0.0
    seed: int = 0
    """64 bits, of one sequence. Noise of the engine Warmfleet is Philox(seed, output index,
    vocabulary id), equal on every device and in every batch; vLLM draws its own."""
    max_output_tokens: int = 16
    min_output_tokens: int = 0
    """Until so many are generated, no token of `stop_token_ids` can be chosen."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these token ids."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token that has been generated."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token once per time it has been generated."""
    repetition_penalty: float = 1.0
    """Divides a positive logit, multiplies another one, of every token in the prompt or generated
    (Keskar et al. 2019, arXiv:1909.05858)."""
    stop_token_ids: frozenset[int] = frozenset()
    """Ends the sequence; the id itself is not part of the text. Includes the model's own end tokens
    unless the request ignores them."""
    logprobs: int | None = None
    """Each generated token comes with its log probability and those of so many most likely tokens; None:
    neither. Like `prompt_logprobs` of the model's own distribution, before all of the above."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, in the float32 of samplers: 1e-46 is."""
        return c_float(self.temperature).value == 0

    @property
    def has_penalty(self) -> bool:
        """Whether the choice of a token depends on the tokens before it, beyond the model."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1
