"""A step of a model without its runner."""

from collections.abc import Sequence

from torch import Tensor

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.runner.step_model import StepModel


def hidden_rows(
    model: StepModel, chunks: Sequence[Chunk], wanted: Sequence[int]
) -> tuple[Tensor, list[bool]]:
    """Both halves of a step: a copy of the `wanted` rows, and for each chunk whether it is finite."""
    computed = model.begin(chunks, wanted, ()).finish()
    return computed.hidden.clone(), computed.finite
