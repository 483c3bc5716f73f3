"""Runs one step of the model: a batch of chunks in, one result per chunk out.

The runner has blocks by number and no state of sequences: every decision of the scheduler (chunking, batch,
block table) is a `StepBatch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.resources.engine_memory import EngineMemory, engine_memory, longest_sequence_tokens
from warmfleet_runtime.memory import memory_limit_bytes, own_memory_bytes
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine.batch import StepBatch, StepResult
from warmfleet_worker.kv_cache.layout import KvLayout, KvShape, kv_layout
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model.loader import load_decoder, open_checkpoint
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.native.choice import KernelsNotAvailable, choose_native
from warmfleet_worker.native.formats import WeightFormat
from warmfleet_worker.native.model import NativeModel
from warmfleet_worker.runner.memory_budget import (
    DeviceMemory,
    NotEnoughMemory,
    device_refusal,
    memory_refusal,
    share_of_device_bytes,
)
from warmfleet_worker.runner.runner_step import RunnerStep
from warmfleet_worker.runner.step_model import StepModel
from warmfleet_worker.runner.torch_model import TorchModel
from warmfleet_worker.settings import CpuKernels, WeightQuantization

DtypeName = Literal["Auto", "Float32", "BFloat16", "Float16", "Float64"]

DTYPES: Final[dict[str, torch.dtype]] = {
    "Float32": torch.float32,
    "BFloat16": torch.bfloat16,
    "Float16": torch.float16,
    "Float64": torch.float64,
}


class KvCacheTooSmall(WarmfleetError):  # noqa: N818 - named after what is wrong
    """The KV cache has no room for a single block."""


class NoDeviceMemory(WarmfleetError):  # noqa: N818 - named after what is wrong
    """A share of a device's memory was asked for where there is no device."""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Settings of a model runner."""

    kv_cache_bytes: int
    """Memory for keys and values; rounded down to whole blocks."""
    device_memory_percent: int = 0
    """Instead: so much of the device's memory for weights and KV together; 0 = `kv_cache_bytes` counts."""
    block_size_tokens: int = 16
    dtype: DtypeName = "Auto"
    """Of weights that are not quantised, activations and KV. Auto: see `resolve_dtype`."""
    weight_quantization: WeightQuantization = "None"
    """By the native step alone."""
    max_model_length_tokens: int = 0
    """Longest sequence; 0, or more than the model was trained for, means the model's own limit."""
    threads: int = 0
    """CPU threads of this process's kernels; 0: one for each core that it may use."""
    cpu_kernels: CpuKernels = "Auto"
    """What computes on a CPU."""
    poison: bool = False
    """Fill blocks with NaN before their first use; for tests."""


class ModelRunner:
    """A model with its KV arena, ready to execute steps. Made by `load_runner`.

    runner = load_runner(model_path, RunnerSettings(kv_cache_bytes=2**30))
    result = runner.execute(StepBatch(chunks))
    result.chunks[0].token_ids  # none unless the chunk asked for a sample
    """

    def __init__(self, model: StepModel, *, max_model_length_tokens: int) -> None:
        self.max_model_length_tokens = max_model_length_tokens
        self._step_model = model
        self._arena = model.arena

    @property
    def model(self) -> ModelConfig:
        """The model's configuration."""
        return self._step_model.config

    @property
    def step_model(self) -> StepModel:
        """What computes."""
        return self._step_model

    @property
    def total_blocks(self) -> int:
        """Blocks that a pool may allocate: ids 0 to `total_blocks` - 1."""
        return self._arena.total_blocks

    @property
    def kv_bytes_per_token(self) -> int:
        """Exactly 2 x layers x KV heads x head dimension x element size."""
        return self._arena.layout.shape.bytes_per_token

    @property
    def dtype_name(self) -> str:
        """The dtype that runs, by its name in the settings; never "Auto"."""
        return next(name for name, dtype in DTYPES.items() if dtype == self._arena.storage.dtype)

    @property
    def device_name(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self._arena.storage.device.type

    @property
    def exact(self) -> bool:
        """Whether a token is the same in every batch, chunk and cache state, bit by bit."""
        return self._step_model.exact

    @property
    def kernels(self) -> str:
        """What computes: "torch", or the native step's instruction-set level."""
        return self._step_model.kernels

    @property
    def bits(self) -> str:
        """Level and revision of kernels that promise equal bits; "" of others."""
        return f"{self.kernels} {self._step_model.revision}" if self.exact else ""

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN, so that a read of stale memory is noticed."""
        self._arena.poison_blocks(block_ids)

    def block_bytes(self, block_id: int) -> bytes:
        """Keys and values of a block, as stored."""
        return self._arena.block_bytes(block_id)

    def begin(self, batch: StepBatch) -> RunnerStep:
        """Hand a step over and return: compute and store the KV of every chunk, and choose tokens.

        One step at a time. The model may go on computing after this; an error has begun nothing.
        """
        return RunnerStep(self._step_model, batch.chunks)

    def execute(self, batch: StepBatch) -> StepResult:
        """Both halves of a step; results are in the order of `batch.chunks`."""
        return self.begin(batch).finish() if batch.chunks else StepResult((), 0.0)


def load_runner(model_path: Path, settings: RunnerSettings) -> ModelRunner:
    """Load a Hugging Face model folder and allocate its KV arena; nothing large is allocated later.

    Raises:
        ModelError: The folder's configuration or weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
        NoDeviceMemory: A share of device memory is asked for on a CPU.
        NotEnoughMemory: Weights, cache and workspace exceed the memory that this process may use, or what is
            free on the device.
        KernelsNotAvailable: `cpu_kernels` names some that do not run here, or quantised weights are asked for
            where the native step does not compute.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = load_model_config(model_path)
    max_length = longest_sequence_tokens(model_size(config), settings.max_model_length_tokens)
    if device.type == "cpu":
        model = _load_on_cpu(model_path, config, settings, max_length)
    else:
        model = _load_on_device(model_path, config, settings, max_length, device)
    return ModelRunner(model, max_model_length_tokens=max_length)


def _load_on_cpu(
    model_path: Path, config: ModelConfig, settings: RunnerSettings, max_length_tokens: int
) -> StepModel:
    if settings.device_memory_percent:
        raise NoDeviceMemory("a share of device memory needs a GPU; on a CPU give the KV cache's size")
    native = choose_native(
        settings.cpu_kernels,
        settings.dtype,
        config,
        settings.block_size_tokens,
        settings.weight_quantization,
    )
    if native is None:
        _refuse_quantisation(settings)
    dtype = DTYPES[cpu_dtype(settings.dtype, native=native is not None)]
    layout = _layout(config, settings, dtype)
    blocks = _require_a_block(layout, settings.kv_cache_bytes)  # before the weights take their time
    _require_memory(_memory(config, settings, dtype))
    if native is None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        decoder = load_decoder(
            model_path, config, positions=max_length_tokens, dtype=dtype, device=torch.device("cpu")
        )
        return _torch_model(decoder, layout, blocks, settings, max_length_tokens)
    # What PyTorch still does on a CPU is small, and its threads would take the cores of the native ones.
    torch.set_num_threads(1)
    # Weights are rounded once, from what the file holds.
    read_as = torch.float32 if native.weight_format is WeightFormat.INT8 else dtype
    with open_checkpoint(model_path, config, dtype=read_as, device=torch.device("cpu")) as reader:
        return NativeModel(
            native.library,
            reader,
            config,
            layout,
            blocks,
            dtype,
            level=native.level,
            threads=settings.threads,
            positions=max_length_tokens,
            weight_format=native.weight_format,
            poison=settings.poison,
        )


def _refuse_quantisation(settings: RunnerSettings) -> None:
    if settings.weight_quantization != "None":
        raise KernelsNotAvailable(
            f"weight quantization {settings.weight_quantization} is computed by the native step alone, "
            "on CPUs, and here PyTorch would compute; ask for None"
        )


def _load_on_device(
    model_path: Path,
    config: ModelConfig,
    settings: RunnerSettings,
    max_length_tokens: int,
    device: torch.device,
) -> StepModel:
    _refuse_quantisation(settings)
    dtype = DTYPES[resolve_dtype(settings.dtype, config)]
    layout = _layout(config, settings, dtype)
    memory = _memory(config, settings, dtype)
    if not settings.device_memory_percent:
        _require_a_block(layout, settings.kv_cache_bytes)  # before the weights take their time
        if refusal := device_refusal(memory, _device_memory(device)):
            raise NotEnoughMemory(refusal)
    decoder = load_decoder(model_path, config, positions=max_length_tokens, dtype=dtype, device=device)
    kv_cache_bytes = settings.kv_cache_bytes
    if settings.device_memory_percent:
        kv_cache_bytes = share_of_device_bytes(
            settings.device_memory_percent, _device_memory(device), memory.workspace_bytes
        )
    blocks = _require_a_block(layout, kv_cache_bytes)
    return _torch_model(decoder, layout, blocks, settings, max_length_tokens)


def _device_memory(device: torch.device) -> DeviceMemory:
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return DeviceMemory(total_bytes=total_bytes, free_bytes=free_bytes)


def _torch_model(
    decoder: Decoder, layout: KvLayout, blocks: int, settings: RunnerSettings, max_length_tokens: int
) -> TorchModel:
    config = decoder.config
    embedding = decoder.embedding
    arena = KvArena(layout, blocks, embedding.dtype, embedding.device, poison=settings.poison)
    attention = TorchGatherAttention(
        arena, heads=config.heads, window_tokens=config.window_tokens, max_context_tokens=max_length_tokens
    )
    return TorchModel(decoder, arena, attention)


def _layout(config: ModelConfig, settings: RunnerSettings, dtype: torch.dtype) -> KvLayout:
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, dtype.itemsize)
    return kv_layout(shape, settings.block_size_tokens)


def _require_a_block(layout: KvLayout, kv_cache_bytes: int) -> int:
    total_blocks = layout.blocks_in(kv_cache_bytes)
    if total_blocks == 0:
        raise KvCacheTooSmall(
            f"the KV cache of {kv_cache_bytes} bytes is smaller than one block "
            f"({layout.block_stride_bytes} bytes)"
        )
    return total_blocks


def _memory(config: ModelConfig, settings: RunnerSettings, dtype: torch.dtype) -> EngineMemory:
    return engine_memory(
        model_size(config),
        element_bytes=dtype.itemsize,
        block_size_tokens=settings.block_size_tokens,
        kv_cache_bytes=settings.kv_cache_bytes,
        max_model_length_tokens=settings.max_model_length_tokens,
        weight_quantization=settings.weight_quantization,
    )


def _require_memory(memory: EngineMemory) -> None:
    if refusal := memory_refusal(memory, own_memory_bytes(), memory_limit_bytes()):
        raise NotEnoughMemory(refusal)


def resolve_dtype(name: DtypeName, config: ModelConfig, block_size_tokens: int = 16) -> DtypeName:
    """The dtype in which this machine computes a model; never "Auto"."""
    if name != "Auto":
        return name
    if torch.cuda.is_available():
        return _device_dtype()
    return cpu_dtype(name, native=choose_native("Auto", name, config, block_size_tokens) is not None)


def cpu_dtype(name: DtypeName, *, native: bool) -> DtypeName:
    """Resolve "Auto" on a CPU: bfloat16 where the native step computes, for its bits are promised."""
    if name != "Auto":
        return name
    return "BFloat16" if native else "Float32"


def _device_dtype() -> DtypeName:
    return "BFloat16" if torch.cuda.is_bf16_supported() else "Float16"
