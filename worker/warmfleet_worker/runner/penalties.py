"""Changes of the logits before a token is chosen: bias, penalties, minimum length.

The order is vLLM's: bias, repetition, frequency and presence penalty. Only the tokens concerned are
changed, and rows without any of these cost nothing.
"""

import math
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from warmfleet_worker.engine.batch import SampleRequest


def adjusted(logits: Tensor, requests: Sequence[SampleRequest]) -> Tensor:
    """`logits`, [rows, vocabulary], with each row's request applied; the argument is not changed."""
    rows = [(row, request) for row, request in enumerate(requests) if changes_logits(request)]
    if not rows:
        return logits
    logits = logits.clone()
    for row, request in rows:
        _adjust(logits[row], request)
    return logits


def changes_logits(request: SampleRequest) -> bool:
    """Whether bias, a penalty or a minimum length changes a row."""
    parameters = request.parameters
    return bool(parameters.logit_bias) or parameters.has_penalty or _must_go_on(request)


def _must_go_on(request: SampleRequest) -> bool:
    return request.output_index < request.parameters.min_output_tokens


def _adjust(row: Tensor, request: SampleRequest) -> None:
    """Change one row of logits, [vocabulary], in place."""
    parameters = request.parameters
    if parameters.logit_bias:
        biases = torch.tensor(list(parameters.logit_bias.values()), dtype=row.dtype, device=row.device)
        row[_ids(list(parameters.logit_bias), row)] += biases
    counts = request.token_counts
    assert (counts is not None) or not parameters.has_penalty, request
    if counts is not None and parameters.repetition_penalty != 1:
        seen = _copy(counts.seen, row)
        values, penalty = row[seen], parameters.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts is not None and counts.generated:
        generated = _copy(counts.generated, row)
        times = _copy(counts.times, row).to(row.dtype)
        row[generated] -= parameters.frequency_penalty * times
        row[generated] -= parameters.presence_penalty
    if _must_go_on(request):
        # A client may name stop tokens that the model does not have.
        row[_ids([stop for stop in parameters.stop_token_ids if stop < row.shape[0]], row)] = -math.inf


def _copy(values: "array[int]", row: Tensor) -> Tensor:
    """One copy of the memory: the array can grow while the tensor lives."""
    return torch.frombuffer(bytearray(values), dtype=torch.int64).to(row.device)


def _ids(token_ids: Sequence[int], row: Tensor) -> Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=row.device)
