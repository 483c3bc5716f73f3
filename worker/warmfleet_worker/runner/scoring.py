"""Log probabilities from logits: of given tokens, and of the most likely ones.

Rows whose request asks for no log probabilities cost nothing. The work on [rows, vocabulary] is done in
slices of rows, so that its memory does not grow with the prompt.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.model.computed import Rows

SLICE_VALUES: Final = 4 * 1024 * 1024
"""Logits per slice, unless a single row has more: 16 MiB in float32."""


def row_slices(rows: int, vocab_size: int) -> Iterator[slice]:
    """`rows` rows of logits in pieces of at most `SLICE_VALUES`, or of one row."""
    step = max(SLICE_VALUES // vocab_size, 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def score(pieces: Iterable[NDArray[Any]], token_ids: Sequence[int], top: int) -> TokenLogprobs:
    """Log probability of one token per row, with those of the `top` most likely tokens of the row.

    `pieces` together are the model's logits, [rows, vocabulary]; each is dropped before the next is asked
    for. The values are log softmax in the logits' dtype, rounded to float32. `top` is cut to the vocabulary.
    """
    values, top_ids, top_values = [], [], []
    start = 0
    for logits in pieces:
        own = np.array(token_ids[start : start + logits.shape[0]])[:, None]
        start += len(own)
        top = min(top, logits.shape[1])
        ids = _most_likely(logits, top)
        # Also of logits that are not finite: their sequence ends with an error, but the step does not.
        with np.errstate(invalid="ignore", over="ignore"):
            best = logits.max(axis=1, keepdims=True)
            log_sum = _log_sum_of_exponentials(logits, best)
            values.append(_bytes(np.take_along_axis(logits, own, 1) - best - log_sum, np.float32))
            top_values.append(_bytes(np.take_along_axis(logits, ids, 1) - best - log_sum, np.float32))
        top_ids.append(_bytes(ids, np.uint32))
    return TokenLogprobs(top, b"".join(values), b"".join(top_ids), b"".join(top_values))


def score_rows(
    logits: Rows,
    token_ids: Sequence[int | None],
    tops: Sequence[int | None],
    on_host: Callable[[Rows], NDArray[Any]],
) -> list[TokenLogprobs | None]:
    """Log probabilities of each row's own token; None for a row without a token, or that asks for none.

    `on_host` makes an array of some rows. Those that ask for equally many most likely tokens are computed
    together.
    """
    scores: list[TokenLogprobs | None] = [None] * len(tops)
    asking: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, (token_id, top) in enumerate(zip(token_ids, tops, strict=True)):
        if token_id is not None and top is not None:
            asking[top].append((row, token_id))
    for top, wanted in asking.items():
        rows, own = [row for row, _ in wanted], [token_id for _, token_id in wanted]
        pieces = (on_host(logits[rows[piece]]) for piece in row_slices(len(rows), logits.shape[1]))
        for row, single in zip(rows, score(pieces, own, top).split(), strict=True):
            scores[row] = single
    return scores


def _log_sum_of_exponentials(logits: NDArray[Any], best: NDArray[Any]) -> NDArray[Any]:
    """Of each row, relative to its best: [rows, 1]."""
    exponentials = logits - best
    np.exp(exponentials, out=exponentials)
    log_sum: NDArray[Any] = np.log(exponentials.sum(axis=1, keepdims=True))
    return log_sum


def _most_likely(logits: NDArray[Any], top: int) -> NDArray[np.int64]:
    """Ids of the `top` highest values of each row, highest first, of equals the lowest id first."""
    ids = np.empty((logits.shape[0], top), np.int64)
    if top:
        edges = np.partition(logits, -top, axis=1)[:, -top]
        for row, (values, edge) in enumerate(zip(logits, edges, strict=True)):
            candidates = np.flatnonzero(~(values < edge))  # more than `top` where some tie with the last
            ids[row] = candidates[np.argsort(-values[candidates], kind="stable")[:top]]
    return ids


def _bytes(values: NDArray[Any], dtype: DTypeLike) -> bytes:
    return values.astype(dtype).tobytes()
