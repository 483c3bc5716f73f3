"""What a comparison found, as JSON between the process that computes and the command that prints."""

import msgspec


class LayerDifference(msgspec.Struct, frozen=True):
    """One layer, or the head behind the last one."""

    name: str
    difference: float
    """Largest difference of any value behind this layer, all layers before it included."""
    largest_value: float
    """Of the reference, in magnitude."""
    own_difference: float
    """Largest difference of this layer alone: the reference computes it from what the engine's layer read."""
    of_bound: float
    """The own difference as a share of what rounding explains, where that share is largest."""


class Divergence(msgspec.Struct, frozen=True):
    """The first token of a greedy answer that the reference would not have chosen."""

    index: int
    """In the answer."""
    engine_token_id: int
    reference_token_id: int
    gap: float
    """Between the reference's two highest scores: with that much error, either may be chosen."""
    difference: float
    """Largest difference of a score at this token."""


class ParityReport(msgspec.Struct, frozen=True):
    """A comparison of one model."""

    model: str
    dtype: str
    device: str
    kernels: str
    epsilon: float
    """Of the dtype: the distance from 1 to the next number."""
    factor: float
    """Standard bounds beyond which one of all compared values lies with a probability of 1e-9."""
    prompt_tokens: int
    answer_tokens: int
    layers: list[LayerDifference]
    divergence: Divergence | None
    smallest_gap: float
    """Between the reference's two highest scores, of all tokens of the answer."""

    @property
    def unexplained(self) -> list[str]:
        """The layers that rounding does not explain; NaN counts."""
        return [layer.name for layer in self.layers if not layer.of_bound <= 1]

    @property
    def is_explained(self) -> bool:
        """Whether all differences are those of rounding."""
        return not self.unexplained
