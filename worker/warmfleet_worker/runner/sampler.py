"""Choosing the next token: filters as thresholds, then the Gumbel-max trick with counter-based noise.

argmax(logits / temperature + Gumbel noise) is a draw from softmax(logits / temperature) (Gumbel 1954;
Maddison et al. 2014, arXiv:1411.0030). The noise of a token is a pure function of (seed, output index,
vocabulary id), so a draw does not depend on the batch or what was sampled before; and on the device only
where two noisy scores are nearly equal, for a GPU's logarithms have other last bits.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.engine.batch import SampleRequest
from warmfleet_worker.runner.philox import philox_4x32

NUCLEUS_CANDIDATES: Final = 512
"""Most nuclei are smaller; only a wider one costs a sort of the whole vocabulary."""
NOISE_NUMBERS: Final = 2**22
"""Drawn at once: each takes some 34 bytes meanwhile."""


def choose(logits: Tensor, requests: Sequence[SampleRequest]) -> list[int | None]:
    """Choose one token id per row of `logits`, [rows, vocabulary]; None for a row that is not finite.

    Bias and penalties came first, in `penalties`; then the filters: temperature, top-k, top-p, min-p. Tokens
    that tie with the last one kept are kept too. Greedy rows, and ties of noisy scores, give the lowest id.
    """
    assert logits.shape[0] == len(requests)
    best = logits.amax(dim=-1, keepdim=True)
    finite = best.isfinite().flatten().tolist()
    # Of a row that is not finite no filter finds an edge.
    noisy = [row for row, request in enumerate(requests) if finite[row] and not request.parameters.is_greedy]
    scores = logits
    if noisy:
        rows = torch.tensor(noisy, device=logits.device)
        scores = logits.clone()
        scores[rows] = _noisy_scores(
            # Relative to the best, so that no temperature can overflow.
            (logits[rows] - best[rows]).to(torch.float32),
            [requests[row] for row in noisy],
        ).to(scores.dtype)
    # Documented to give the first of equals, and several times faster than argmax on a CPU.
    chosen = scores.max(dim=-1).indices.tolist()
    return [token if ok else None for token, ok in zip(chosen, finite, strict=True)]


def gumbel_noise(
    seeds: Sequence[int], output_indices: Sequence[int], vocab_size: int, device: torch.device | None = None
) -> Tensor:
    """Gumbel noise in float32, [rows, vocabulary], computed on `device`.

    Token v of a row reads word v % 4 of Philox4x32-10 with counter (v // 4, output index, 0, 0) and the
    64-bit seed as key. From word w, in float32: u = (w + 0.5) / 2^32, kept below 1, and
    -log(-log(1 - u)).
    """
    counters = torch.arange(-(-vocab_size // 4), dtype=torch.int64, device=device)[None, :]
    columns = [output_indices, *([seed >> shift & 0xFFFFFFFF for seed in seeds] for shift in (0, 32))]
    indices, key_low, key_high = torch.tensor(columns, dtype=torch.int64, device=device)[:, :, None]
    zero = torch.zeros((), dtype=torch.int64, device=device)
    words = philox_4x32((counters, indices, zero, zero), (key_low, key_high))
    uniform = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size].to(torch.float32)
    uniform = ((uniform + 0.5) * 2.0**-32).clamp(max=1.0 - 2.0**-24)
    # log1p keeps the resolution where it matters: the winners come from the smallest exponentials.
    return -torch.log(-torch.log1p(-uniform))


def _noisy_scores(relative_logits: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    parameters = [request.parameters for request in requests]
    device = relative_logits.device
    temperatures = torch.tensor([p.temperature for p in parameters], device=device)[:, None]
    scaled = relative_logits / temperatures
    threshold = torch.full_like(temperatures, -math.inf)
    for row, p in enumerate(parameters):
        threshold[row] = _threshold(scaled[row], p.top_k, p.top_p, p.min_p)
    scores = scaled.masked_fill(scaled < threshold, -math.inf)
    vocab_size = scaled.shape[1]
    at_once = max(1, NOISE_NUMBERS // vocab_size)
    for first in range(0, len(requests), at_once):
        some = requests[first : first + at_once]
        scores[first : first + at_once] += gumbel_noise(
            [request.parameters.seed for request in some],
            [request.output_index for request in some],
            vocab_size,
            device,
        )
    return scores


def _threshold(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """Least scaled logit that survives the filters; the best is 0 and always survives."""
    threshold = math.log(min_p) if min_p > 0 else -math.inf
    limited = 0 < top_k < scaled.shape[0]
    if limited:
        threshold = max(threshold, float(scaled.topk(top_k).values[-1]))
    if top_p < 1:
        # Top-p counts the mass of what top-k leaves (ties with its last included), as everywhere.
        kept = scaled[scaled >= float(scaled.topk(top_k).values[-1])] if limited else scaled
        threshold = max(threshold, _nucleus_edge(kept, top_p))
    return min(threshold, 0.0)


def _nucleus_edge(scaled: Tensor, top_p: float) -> float:
    """Logit of the last token of the smallest set of best tokens whose mass reaches `top_p`."""
    mass = scaled.exp().sum(dtype=torch.float64) * top_p
    for candidates in (min(NUCLEUS_CANDIDATES, scaled.shape[0]), scaled.shape[0]):
        best = scaled.topk(candidates).values
        cumulated = best.exp().cumsum(0, dtype=torch.float64)
        if cumulated[-1] >= mass or candidates == scaled.shape[0]:
            inside = int((cumulated < mass).sum())
            return float(best[min(inside, candidates - 1)])
    raise AssertionError("unreachable: the last round holds every token")
