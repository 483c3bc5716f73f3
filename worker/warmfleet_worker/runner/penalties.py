"""Changes of the logits before a token is chosen: bias, penalties, minimum length.

The order is vLLM's: bias, repetition, frequency and presence penalty. Only the tokens concerned are
changed, and rows without any of these cost nothing.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmfleet_worker.engine.batch import SampleRequest


def adjusted(logits: NDArray[Any], requests: Sequence[SampleRequest]) -> NDArray[Any]:
    """`logits`, [rows, vocabulary], with each row's request applied; the argument is not changed."""
    rows = [(row, request) for row, request in enumerate(requests) if changes_logits(request)]
    if not rows:
        return logits
    logits = logits.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # a row that is not finite gets no token
        for row, request in rows:
            _adjust(logits[row], request)
    return logits


def changes_logits(request: SampleRequest) -> bool:
    """Whether bias, a penalty or a minimum length changes a row."""
    parameters = request.parameters
    return bool(parameters.logit_bias) or parameters.has_penalty or _must_go_on(request)


def _must_go_on(request: SampleRequest) -> bool:
    return request.output_index < request.parameters.min_output_tokens


def _adjust(row: NDArray[Any], request: SampleRequest) -> None:
    """Change one row of logits, [vocabulary], in place."""
    parameters = request.parameters
    if parameters.logit_bias:
        row[list(parameters.logit_bias)] += np.array(list(parameters.logit_bias.values()), row.dtype)
    counts = request.token_counts
    assert (counts is not None) or not parameters.has_penalty, request
    if counts is not None and parameters.repetition_penalty != 1:
        seen = np.array(counts.seen)
        values, penalty = row[seen], row.dtype.type(parameters.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if counts is not None and counts.generated:
        generated, times = np.array(counts.generated), np.array(counts.times, row.dtype)
        row[generated] -= row.dtype.type(parameters.frequency_penalty) * times
        row[generated] -= row.dtype.type(parameters.presence_penalty)
    if _must_go_on(request):
        # A client may name stop tokens that the model does not have.
        row[[stop for stop in parameters.stop_token_ids if stop < row.size]] = -math.inf
