"""How near a step comes to the limits of its machine: the least time that its reads and products take there.

A step reads every weight and the keys and values of its contexts, and multiplies each token by every weight.
Neither can take less than its amount over the machine's rate, so the longer of the two is the limit
(Williams, Waterman and Patterson, "Roofline", 2009). What the sampler and the norms do is not counted, nor
the rows that a prefill's last token takes of the head: the limit is a lower bound of the time.
"""

import math
from typing import Final, Literal

import msgspec

from warmfleet_worker.engine.step_time import StepShape

FORGETTING: Final = 0.99
"""Weight of a step against the next one of its phase: about the last 100 count."""

Phase = Literal["decode", "prefill"]


class MachineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the processors of this machine, or its GPU, reach at best."""

    read_bytes_per_second: float
    """Of anonymous memory in huge pages, where the system gives them; of a GPU's own memory."""
    read_threads: int
    """Number of threads with which that was reached; 0: by a GPU."""
    buffer_bytes: int
    """Memory that was read."""
    bfloat16_flops_per_second: float
    """Products and sums of torch's matrix product; 0: not measured."""
    float32_flops_per_second: float
    gpu: str = ""
    """Name of the GPU whose limits these are; "": the processors'."""

    def best(self, other: "MachineLimits") -> "MachineLimits":
        """The higher of each limit: what a machine has reached, it can reach."""
        faster = max(self, other, key=lambda limits: limits.read_bytes_per_second)
        return msgspec.structs.replace(
            faster,
            bfloat16_flops_per_second=max(self.bfloat16_flops_per_second, other.bfloat16_flops_per_second),
            float32_flops_per_second=max(self.float32_flops_per_second, other.float32_flops_per_second),
        )

    def flops_per_second(self, element_bytes: int) -> float:
        """Of weights with so many bytes each: those of 2 may also be multiplied as float32."""
        if element_bytes <= 2:
            return max(self.bfloat16_flops_per_second, self.float32_flops_per_second)
        return self.float32_flops_per_second * 4 / element_bytes


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a model asks of the machine."""

    element_bytes: int
    """Of keys and values, and of weights that are not quantised."""
    layer_weights: int
    """Weights that each token is multiplied by, without the head's."""
    head_weights: int
    """Of the output layer, which a step reads when a sequence wants its next token."""
    kv_bytes_per_token: int
    flops_per_pair: int
    """Of the attention between a token and one of its context, over all layers."""
    quantised_weight_bytes: float = 0.0
    """Of one quantised weight; 0: they are not."""
    window_tokens: int = 0
    """A token reads at most so much context; 0: all of it."""

    @property
    def weight_bytes(self) -> int:
        """What a decode reads besides its contexts."""
        return self._bytes_of(self.layer_weights + self.head_weights)

    def _bytes_of(self, weights: int) -> int:
        return int(weights * (self.quantised_weight_bytes or self.element_bytes))

    def read_bytes(self, shape: StepShape) -> int:
        """Weights and KV that a step reads."""
        weights = self.layer_weights + (self.head_weights if shape.decode_sequences else 0)
        context_tokens = shape.context_tokens
        if self.window_tokens:
            context_tokens = min(context_tokens, self.window_tokens * shape.tokens)
        return self._bytes_of(weights) + context_tokens * self.kv_bytes_per_token

    def flops(self, shape: StepShape) -> int:
        """Products and sums of a step, without the attention of its decodes, which is bound by reads."""
        return (
            2 * self.layer_weights * shape.tokens
            + 2 * self.head_weights * shape.decode_sequences
            + self.flops_per_pair * shape.attention_pairs
        )


def least_seconds(cost: ModelCost, limits: MachineLimits, shape: StepShape) -> float:
    """The time below which no step of this shape can take on such a machine."""
    flops_per_second = limits.flops_per_second(cost.element_bytes)
    return max(
        cost.read_bytes(shape) / limits.read_bytes_per_second,
        cost.flops(shape) / flops_per_second if flops_per_second else 0.0,
    )


class StepRoofline:
    """The ratio of least to real time over the recent steps, by phase.

    meter.observe(StepShape.of(batch), seconds)  # after each step
    meter.ratio("decode")  # 0.0 before the first one
    """

    def __init__(self, cost: ModelCost, limits: MachineLimits) -> None:
        self._cost = cost
        self._limits = limits
        self._least = {"decode": 0.0, "prefill": 0.0}
        self._real = {"decode": 0.0, "prefill": 0.0}

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Count one step; one with any prefill is of that phase. Impossible durations are ignored."""
        if not (math.isfinite(seconds) and seconds > 0.0):
            return
        phase = "prefill" if shape.prefill_tokens else "decode"
        least = least_seconds(self._cost, self._limits, shape)
        self._least[phase] = FORGETTING * self._least[phase] + least
        self._real[phase] = FORGETTING * self._real[phase] + seconds

    def ratio(self, phase: Phase) -> float:
        """0.0 before the first step of that phase."""
        return self._least[phase] / self._real[phase] if self._real[phase] else 0.0
