"""A step of a model without its runner, with tensors of torch for every model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.native.model import NativeModel
from warmfleet_worker.runner.step_model import StepModel


def hidden_rows(
    model: StepModel[Any], chunks: Sequence[Chunk], wanted: Sequence[int]
) -> tuple[Tensor, list[bool]]:
    """Both halves of a step: a copy of the `wanted` rows, and for each chunk whether it is finite."""
    computed = model.begin(chunks, wanted, ()).finish()
    return torch.as_tensor(computed.hidden).clone(), computed.finite


def head_logits(model: StepModel[Any], hidden: Tensor) -> Tensor:
    """As `StepModel.logits`."""
    rows = hidden.numpy() if isinstance(model, NativeModel) else hidden
    return torch.as_tensor(model.logits(rows))
