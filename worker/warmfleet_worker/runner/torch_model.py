"""A decoder by PyTorch: for GPUs, for every dtype, and for CPUs without the native step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk, SampleRequest, finite_chunks
from warmfleet_worker.model.computed import Computed
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.runner.sampler import choose
from warmfleet_worker.runner.torch_steps import TorchSteps
from warmfleet_worker.settings import Dtype


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A step whose operations are queued; those of a CPU have been computed."""

    chunks: Sequence[Chunk]
    requests: Sequence[SampleRequest]
    hidden: Tensor
    """Of all rows."""
    wanted: Tensor
    logits: Tensor | None
    seconds: float
    """What it took so far: to queue it on a device, to compute it on a CPU."""

    @torch.inference_mode()
    def finish(self) -> Computed[Tensor]:
        """As `ModelStep.finish`."""
        started = time.perf_counter()
        # A state that is not finite stays so through the layers.
        finite = finite_chunks(self.hidden.isfinite().all(dim=1).tolist(), self.chunks)
        token_ids = [] if self.logits is None else choose(self.logits, self.requests)
        seconds = self.seconds + time.perf_counter() - started
        return Computed(self.wanted, finite, self.logits, token_ids, seconds)


DTYPES: Final[dict[Dtype, torch.dtype]] = {
    "Float32": torch.float32,
    "BFloat16": torch.bfloat16,
    "Float16": torch.float16,
    "Float64": torch.float64,
}


class TorchModel:
    """A decoder, its KV arena, and how steps of it are computed.

    Not exact: a matrix product of PyTorch changes in its last bits with the number of rows.
    """

    exact: Final = False
    revision: Final = ""

    def __init__(self, decoder: Decoder, arena: KvArena, steps: TorchSteps) -> None:
        self.arena = arena
        self._decoder = decoder
        self._steps = steps
        self._device = arena.storage.device

    @property
    def config(self) -> ModelConfig:
        return self._decoder.config

    @property
    def kernels(self) -> str:
        """As `StepModel.kernels`."""
        return self._steps.kernels

    @property
    def dtype_name(self) -> Dtype:
        """As `StepModel.dtype_name`."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.arena.storage.dtype)

    @property
    def device_name(self) -> str:
        """As `StepModel.device_name`."""
        return self._device.type

    @torch.inference_mode()
    def begin(
        self, chunks: Sequence[Chunk], wanted: Sequence[int], requests: Sequence[SampleRequest]
    ) -> "TorchStep":
        """As `StepModel.begin`: a device computes while the interpreter goes on, a CPU at once."""
        started = time.perf_counter()
        step = self._steps.rows(chunks)
        rows = self._wanted(step.hidden, wanted)
        logits = None
        if requests:
            logits = self.logits(rows) if step.logits is None else self._wanted(step.logits, wanted)
        return TorchStep(chunks, requests, step.hidden, rows, logits, time.perf_counter() - started)

    @torch.inference_mode()
    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> Tensor:
        """As `StepModel.hidden_after_layers`."""
        return torch.stack(self._steps.after_layers(chunks))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `StepModel.logits`."""
        logits = self._decoder.logits(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def on_host(self, logits: Tensor) -> NDArray[Any]:
        """As `StepModel.on_host`."""
        rows: NDArray[Any] = logits.cpu().numpy()
        return rows

    @torch.inference_mode()
    def choose(self, logits: NDArray[Any], requests: Sequence[SampleRequest]) -> list[int | None]:
        """As `StepModel.choose`."""
        return choose(torch.from_numpy(logits).to(self._device), requests)

    def _wanted(self, rows: Tensor, wanted: Sequence[int]) -> Tensor:
        if len(wanted) == rows.shape[0]:
            return rows
        index = torch.tensor(wanted, dtype=torch.int64)
        if self._device.type == "cuda":
            index = index.pin_memory()  # other memory is copied after all that is queued, and waited for
        return rows[index.to(self._device, non_blocking=True)]
