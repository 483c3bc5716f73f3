"""Step times and KV capacity of named GPUs and models, by their published figures.

A step reads all weights once and the KV of its sequences, both at the speed of the memory, and computes two
operations per parameter and token: it takes the longer of the two, so that prefill is free up to the knee
(the roofline model; Williams, Waterman and Patterson 2009). The figures of the GPUs are those of the vendors'
data sheets, without sparsity; the shapes of the models are those of their published configurations. Which
share of them an engine reaches is `COMPUTE_EFFICIENCY` and `MEMORY_EFFICIENCY`. For figures of your own
engine give the fit that its workers report (`warmfleet simulate --step-times`).
"""

import re
from dataclasses import dataclass
from typing import Final

from warmfleet_simulator.errors import SimulationError, UnknownNameError
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import PICOSECONDS, StepTimes
from warmfleet_worker.kv_cache.layout import KvShape

COMPUTE_EFFICIENCY: Final = 0.5
"""Of the data sheet's operations: what the matrix products of a prefill reach."""
MEMORY_EFFICIENCY: Final = 0.7
"""Of the data sheet's bandwidth: what a decode reaches."""
USED_MEMORY: Final = 0.9
"""Share of the memory for weights and KV cache; the rest is for activations."""
DECODE_PS: Final = 20_000_000
"""Sampling of one sequence: 20 microseconds."""
LAUNCH_PS: Final = 2_000_000_000
"""What a step takes besides: 2 milliseconds for its preparation and kernel launches."""
ELEMENT_BYTES: Final = 2
"""Of weights, keys and values: BF16."""
MAX_GPUS: Final = 64
"""Of one replica."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet."""

    memory_gb: float
    bandwidth_gb_per_second: float
    tera_operations: float
    """Per second, BF16, dense."""
    source: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model by its configuration."""

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int
    source: str

    @property
    def kv_bytes_per_token(self) -> int:
        return KvShape(self.layers, self.kv_heads, self.head_dim, ELEMENT_BYTES).bytes_per_token


GPUS: Final[dict[str, Gpu]] = {
    "L4": Gpu(24, 300, 121, "NVIDIA L4 data sheet"),
    "L40S": Gpu(48, 864, 362, "NVIDIA L40S data sheet"),
    "A100-80GB": Gpu(80, 2039, 312, "NVIDIA A100 data sheet, SXM"),
    "H100": Gpu(80, 3350, 989, "NVIDIA H100 data sheet, SXM"),
    "H200": Gpu(141, 4800, 989, "NVIDIA H200 data sheet, SXM"),
    "MI300X": Gpu(192, 5300, 1307, "AMD Instinct MI300X data sheet"),
}

MODELS: Final[dict[str, Model]] = {
    "Llama-3.1-8B": Model(8.03e9, 32, 8, 128, "config.json of meta-llama/Llama-3.1-8B"),
    "Llama-3.1-70B": Model(70.6e9, 80, 8, 128, "config.json of meta-llama/Llama-3.1-70B"),
    "Qwen3-8B": Model(8.19e9, 36, 8, 128, "config.json of Qwen/Qwen3-8B"),
    "Qwen3-32B": Model(32.8e9, 64, 8, 128, "config.json of Qwen/Qwen3-32B"),
}


def replica_settings(gpu_name: str, model_name: str, *, block_size_tokens: int) -> ReplicaSettings:
    """A replica of `model_name` on `gpu_name`, such as `H100` or `8xH100` for eight of them.

    Several GPUs of a replica are taken as one with the sum of their figures.

    Raises:
        SimulationError: a name is unknown, or the weights do not fit.
    """
    count, gpu = _gpus(gpu_name)
    model = MODELS.get(model_name)
    if model is None:
        raise UnknownNameError("model", model_name, MODELS)
    weight_bytes = model.parameters * ELEMENT_BYTES
    kv_bytes = count * gpu.memory_gb * 1e9 * USED_MEMORY - weight_bytes
    total_blocks = int(kv_bytes / model.kv_bytes_per_token / block_size_tokens)
    if total_blocks < 1:
        raise SimulationError(f"the weights of {model_name} leave no memory for a KV cache on {gpu_name}")
    bytes_per_second = count * gpu.bandwidth_gb_per_second * 1e9 * MEMORY_EFFICIENCY
    operations_per_second = count * gpu.tera_operations * 1e12 * COMPUTE_EFFICIENCY
    weights_ps = round(weight_bytes / bytes_per_second * PICOSECONDS)
    token_ps = round(2 * model.parameters / operations_per_second * PICOSECONDS)
    return ReplicaSettings(
        step_times=StepTimes(
            base_ps=weights_ps + LAUNCH_PS,
            prefill_token_ps=token_ps,
            decode_ps=DECODE_PS,
            context_token_ps=round(model.kv_bytes_per_token / bytes_per_second * PICOSECONDS),
            knee_tokens=weights_ps // token_ps,
        ),
        block_size_tokens=block_size_tokens,
        total_blocks=total_blocks,
    )


def _gpus(name: str) -> tuple[int, Gpu]:
    """How many GPUs of which kind `name` stands for."""
    several = re.fullmatch(r"([1-9][0-9]?)x(.+)", name)
    count, kind = (int(several[1]), several[2]) if several else (1, name)
    if kind not in GPUS or count > MAX_GPUS:
        raise UnknownNameError("GPU", name, [*GPUS, f"2x... to {MAX_GPUS}x... of each"])
    return count, GPUS[kind]
