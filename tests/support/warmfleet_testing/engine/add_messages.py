"""Messages that add one sequence."""

from collections.abc import Iterable
from typing import Any

from warmfleet_worker.engine.messages import AddSequences, NewSequence, packed_tokens
from warmfleet_worker.engine.sampling_params import SamplingParameters


def add_sequence(
    sequence_id: int, prompt: Iterable[int], sampling: SamplingParameters, **fields: Any
) -> AddSequences:
    """A prompt with one sequence; `fields` are more of `AddSequences`."""
    return AddSequences(
        sequences=[NewSequence(sequence_id, sampling.seed)],
        prompt=packed_tokens(prompt),
        sampling=sampling,
        **fields,
    )
