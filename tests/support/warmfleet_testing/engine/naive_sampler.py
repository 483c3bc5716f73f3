"""The sampler in numpy and plain Python, one token at a time: the oracle of the real one."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from warmfleet_worker.engine.batch import SampleRequest
from warmfleet_worker.engine.token_counts import TokenCounts

Logits = NDArray[np.float32]


def token_counts(known_token_ids: Sequence[int], output_tokens: int) -> TokenCounts:
    """Counts of a sequence whose last `output_tokens` tokens were generated."""
    prompt_tokens = len(known_token_ids) - output_tokens
    counts = TokenCounts(known_token_ids[:prompt_tokens])
    for token_id in known_token_ids[prompt_tokens:]:
        counts.add(token_id)
    return counts


def naive_adjusted(logits: Logits, request: SampleRequest) -> Logits:
    """Token by token, in the order in which vLLM changes a logit."""
    p = request.parameters
    counts = request.token_counts or TokenCounts(())
    known = set(counts.seen)
    times = dict(zip(counts.generated, counts.times, strict=True))
    changed = logits.copy()
    for token in range(len(logits)):
        changed[token] += np.float32(p.logit_bias.get(token, 0.0))
        if token in known and changed[token] > 0:
            changed[token] /= np.float32(p.repetition_penalty)
        elif token in known:
            changed[token] *= np.float32(p.repetition_penalty)
        changed[token] -= np.float32(p.frequency_penalty) * np.float32(times.get(token, 0))
        changed[token] -= np.float32(p.presence_penalty) * np.float32(token in times)
        if token in p.stop_token_ids and request.output_index < p.min_output_tokens:
            changed[token] = -np.inf
    return changed


def naive_sample(logits: Logits, request: SampleRequest) -> int:
    """The next token by the definitions: changes, filters by sorting, the draw with its noise."""
    p = request.parameters
    logits = naive_adjusted(logits, request)
    if p.temperature == 0:
        return int(np.argmax(logits))
    scaled = (logits.astype(np.float32) - logits.max()) / np.float32(p.temperature)
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    kept = [t for t in order if not 0 < p.top_k < len(order) or scaled[t] >= scaled[order[p.top_k - 1]]]
    weights = np.exp(scaled.astype(np.float64))
    total = sum(weights[t] for t in kept)
    if p.top_p < 1:
        masses = list(itertools.accumulate(weights[t] for t in kept))
        edge = next(t for t, mass in zip(kept, masses, strict=True) if mass >= p.top_p * total)
        kept = [t for t in kept if scaled[t] >= scaled[edge]]
    if p.min_p > 0:
        kept = [t for t in kept if weights[t] >= p.min_p]
    noise = naive_noise(p.seed, request.output_index, len(scaled))
    return min(kept, key=lambda t: (-(scaled[t] + noise[t]), t))


def naive_noise(seed: int, index: int, vocab_size: int) -> Logits:
    """Gumbel noise of every token of the vocabulary."""
    words: list[int] = []
    for counter in range(-(-vocab_size // 4)):
        words += naive_philox([counter, index, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    # The uniform numbers are float32 by definition; only the logarithms may differ by rounding.
    uniform = (np.array(words[:vocab_size], dtype=np.float32) + np.float32(0.5)) * np.float32(2**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2**-24)).astype(np.float64)
    return (-np.log(-np.log1p(-uniform))).astype(np.float32)


def naive_philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10, word by word."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (second >> 32) ^ c1 ^ k0, second & 0xFFFFFFFF
        c2, c3 = (first >> 32) ^ c3 ^ k1, first & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]
