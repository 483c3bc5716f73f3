"""Runs one step of the model: a batch of chunks in, one result per chunk out.

The runner has blocks by number and no state of sequences: every decision of the scheduler (chunking, batch,
block table) is a `StepBatch`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.resources.engine_memory import longest_sequence_tokens
from warmfleet_runtime.memory import importing, memory_limit_bytes, own_memory_bytes
from warmfleet_worker.engine.batch import StepBatch, StepResult
from warmfleet_worker.model.checkpoint import open_checkpoint
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.native.choice import (
    KernelsNotAvailable,
    NativeChoice,
    NotNative,
    choose_native,
    torch_by_settings,
)
from warmfleet_worker.native.model import NativeModel
from warmfleet_worker.pytorch import TorchNotInstalled, is_torch_installed
from warmfleet_worker.runner.device import has_gpu
from warmfleet_worker.runner.memory_budget import NotEnoughMemory, memory_refusal
from warmfleet_worker.runner.runner_settings import LoadPlan, RunnerSettings
from warmfleet_worker.runner.runner_step import RunnerStep
from warmfleet_worker.runner.step_model import StepModel
from warmfleet_worker.settings import CpuKernels, Dtype

_ON_A_GPU: Final = "there is a GPU"
_log = structlog.get_logger(__name__)


class NoDeviceMemory(WarmfleetError):  # noqa: N818 - named after what is wrong
    """A share of a device's memory was asked for where there is no device."""


class ModelRunner:
    """A model with its KV arena, ready to execute steps. Made by `load_runner`.

    runner = load_runner(model_path, RunnerSettings(kv_cache_bytes=2**30))
    result = runner.execute(StepBatch(chunks))
    result.chunks[0].token_ids  # none unless the chunk asked for a sample
    """

    def __init__(self, model: StepModel[Any], *, max_model_length_tokens: int) -> None:
        self.max_model_length_tokens = max_model_length_tokens
        self._step_model = model
        self._arena = model.arena

    @property
    def model(self) -> ModelConfig:
        """The model's configuration."""
        return self._step_model.config

    @property
    def step_model(self) -> StepModel[Any]:
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
    def dtype_name(self) -> Dtype:
        """The dtype that runs, by its name in the settings; never "Auto"."""
        return self._step_model.dtype_name

    @property
    def device_name(self) -> str:
        """Where it runs: "cpu" or "cuda"."""
        return self._step_model.device_name

    @property
    def exact(self) -> bool:
        """Whether a token is the same in every batch, chunk and cache state, bit by bit."""
        return self._step_model.exact

    @property
    def kernels(self) -> str:
        """What computes: "torch", "triton" on a GPU, or the native step's instruction-set level."""
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

    def begin(self, batch: StepBatch) -> RunnerStep[Any]:
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
        TorchNotInstalled: The native step does not compute, and PyTorch is not there.
    """
    config = load_model_config(model_path)
    max_length = longest_sequence_tokens(model_size(config), settings.max_model_length_tokens)
    if has_gpu():
        model = _load_on_device(model_path, config, settings, max_length)
    else:
        model = _load_on_cpu(model_path, config, settings, max_length)
    return ModelRunner(model, max_model_length_tokens=max_length)


def import_libraries(cpu_kernels: CpuKernels, dtype: Dtype) -> None:
    """Import ahead of `load_runner` what it will need with these: torch, which takes seconds, only then.

    Where the native step turns out not to run, `load_runner` imports torch.

    Raises:
        TorchNotInstalled: These settings ask for PyTorch, and it is not there.
    """
    reason = torch_by_settings(cpu_kernels, dtype)
    if reason or has_gpu():
        _import_torch(reason)


def resolve_dtype(
    name: Dtype, config: ModelConfig, block_size_tokens: int = 16, cpu_kernels: CpuKernels = "Auto"
) -> Dtype:
    """The dtype in which this machine computes a model; never "Auto".

    Raises:
        KernelsNotAvailable: `cpu_kernels` names some that do not run here.
    """
    if name != "Auto":
        return name
    if has_gpu():
        return _device_dtype()
    chosen = choose_native(cpu_kernels, name, config, block_size_tokens)
    return cpu_dtype(name, native=isinstance(chosen, NativeChoice))


def cpu_dtype(name: Dtype, *, native: bool) -> Dtype:
    """Resolve "Auto" on a CPU: bfloat16 where the native step computes, for its bits are promised."""
    if name != "Auto":
        return name
    return "BFloat16" if native else "Float32"


def _load_on_cpu(
    model_path: Path, config: ModelConfig, settings: RunnerSettings, max_length_tokens: int
) -> StepModel[Any]:
    if settings.device_memory_percent:
        raise NoDeviceMemory("a share of device memory needs a GPU; on a CPU give the KV cache's size")
    chosen = choose_native(
        settings.cpu_kernels,
        settings.dtype,
        config,
        settings.block_size_tokens,
        settings.weight_quantization,
    )
    if isinstance(chosen, NotNative):
        _refuse_quantisation(settings, chosen.reason)
        _import_torch(chosen.reason)  # now, for what it takes counts as memory of this process
        if not torch_by_settings(settings.cpu_kernels, settings.dtype):
            _log.warning("PyTorch computes: slower, and equal bits are not promised", reason=chosen.reason)
    dtype = cpu_dtype(settings.dtype, native=isinstance(chosen, NativeChoice))
    plan = LoadPlan(model_path, config, settings, dtype, max_length_tokens)
    blocks = plan.blocks(settings.kv_cache_bytes)  # before anything takes time
    if refusal := memory_refusal(plan.memory, own_memory_bytes(), memory_limit_bytes()):
        raise NotEnoughMemory(refusal)
    if isinstance(chosen, NativeChoice):
        if level := chosen.not_permitted:
            _log.warning(
                "the system refuses this process the registers of the best kernels: by a filter of system "
                "calls, or as stacks of signals are small",
                kernels=chosen.level.title,
                refused=level.title,
            )
        return NativeModel(
            chosen.library,
            open_checkpoint(model_path, config),
            config,
            plan.layout,
            blocks,
            level=chosen.level,
            threads=settings.threads,
            positions=max_length_tokens,
            weight_format=chosen.weight_format,
            kv_element=chosen.kv_element,
            poison=settings.poison,
        )
    from warmfleet_worker.runner.torch_loading import load_on_cpu  # noqa: PLC0415

    return load_on_cpu(plan)


def _load_on_device(
    model_path: Path, config: ModelConfig, settings: RunnerSettings, max_length_tokens: int
) -> StepModel[Any]:
    _refuse_quantisation(settings, _ON_A_GPU)
    dtype = _device_dtype() if settings.dtype == "Auto" else settings.dtype
    from warmfleet_worker.runner.torch_loading import load_on_device  # noqa: PLC0415

    return load_on_device(LoadPlan(model_path, config, settings, dtype, max_length_tokens))


def _device_dtype() -> Dtype:
    _import_torch(_ON_A_GPU)
    from warmfleet_worker.runner.torch_loading import device_dtype  # noqa: PLC0415

    return device_dtype()


def _import_torch(reason: str) -> None:
    if not is_torch_installed():
        raise TorchNotInstalled(reason)
    with importing():
        import warmfleet_worker.runner.torch_loading  # noqa: F401, PLC0415


def _refuse_quantisation(settings: RunnerSettings, reason: str) -> None:
    if settings.weight_quantization != "None":
        raise KernelsNotAvailable(
            f"weight quantization {settings.weight_quantization} is computed by the native step alone, "
            f"and it does not compute here: {reason}"
        )
