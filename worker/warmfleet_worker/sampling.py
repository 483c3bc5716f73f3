"""What a request asks of the sampler. No torch: scheduler and server use it too."""

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
    """64 bits. Noise is Philox(seed, output index, vocabulary id): equal on every device, in every batch."""
    max_output_tokens: int = 16
    stop_token_ids: frozenset[int] = frozenset()
    """Ends the sequence; the id itself is not part of the text. Includes the model's own end tokens
    unless the request ignores them."""
