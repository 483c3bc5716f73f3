"""Log probabilities from logits: of given tokens, and of the most likely ones.

Rows whose request asks for no log probabilities cost nothing. The work on [rows, vocabulary] is done in
slices of rows, so that its memory does not grow with the prompt.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.engine.logprobs import TokenLogprobs

SLICE_VALUES: Final = 4 * 1024 * 1024
"""Logits per slice, unless a single row has more: 16 MiB in float32."""


def row_slices(rows: int, vocab_size: int) -> Iterator[slice]:
    """`rows` rows of logits in pieces of at most `SLICE_VALUES`, or of one row."""
    step = max(SLICE_VALUES // vocab_size, 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def score(pieces: Iterable[Tensor], token_ids: Sequence[int], top: int) -> TokenLogprobs:
    """Log probability of one token per row, with those of the `top` most likely tokens of the row.

    `pieces` together are the model's logits, [rows, vocabulary]; each is dropped before the next is asked
    for. The values are log softmax in float32 (in float64 for float64 logits, then rounded). `top` is cut
    to the vocabulary.
    """
    values, top_ids, top_values = [], [], []
    start = 0
    for logits in pieces:
        logprobs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)
        wanted = token_ids[start : start + logits.shape[0]]
        start += len(wanted)
        own = torch.tensor(wanted, dtype=torch.int64, device=logits.device)[:, None]
        values.append(_bytes(logprobs.gather(1, own), torch.float32))
        ids = _most_likely(logprobs, min(top, logits.shape[1]))
        top_ids.append(_bytes(ids, torch.int32))  # the bits of u32: a vocabulary stays far below 2**31
        top_values.append(_bytes(logprobs.gather(1, ids), torch.float32))
        top = ids.shape[1]
    return TokenLogprobs(top, b"".join(values), b"".join(top_ids), b"".join(top_values))


def score_rows(
    logits: Tensor, token_ids: Sequence[int | None], tops: Sequence[int | None]
) -> list[TokenLogprobs | None]:
    """Log probabilities of each row's own token; None for a row without a token, or that asks for none.

    Rows that ask for equally many most likely tokens are computed together.
    """
    scores: list[TokenLogprobs | None] = [None] * len(tops)
    asking: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, (token_id, top) in enumerate(zip(token_ids, tops, strict=True)):
        if token_id is not None and top is not None:
            asking[top].append((row, token_id))
    for top, wanted in asking.items():
        rows, own = [row for row, _ in wanted], [token_id for _, token_id in wanted]
        pieces = (logits[rows[piece]] for piece in row_slices(len(rows), logits.shape[1]))
        for row, single in zip(rows, score(pieces, own, top).split(), strict=True):
            scores[row] = single
    return scores


def _most_likely(logprobs: Tensor, top: int) -> Tensor:
    """Ids of the `top` highest values of each row, highest first, of equals the lowest id first."""
    if not top:
        return logprobs.new_empty((logprobs.shape[0], 0), dtype=torch.int64)
    # topk takes any of the tokens that tie with the last one, in any order.
    values, ids = logprobs.topk(top)
    edge = values[:, -1:]
    ids = ids.sort(dim=-1).values
    order = logprobs.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    ids = ids.gather(1, order)
    for row in ((logprobs >= edge).sum(dim=-1) > top).nonzero().flatten().tolist():
        candidates = (logprobs[row] >= edge[row]).nonzero().flatten()
        best = logprobs[row, candidates].sort(descending=True, stable=True).indices[:top]
        ids[row] = candidates[best]
    return ids


def _bytes(values: Tensor, dtype: torch.dtype) -> bytes:
    return values.to(device="cpu", dtype=dtype).contiguous().numpy().tobytes()
