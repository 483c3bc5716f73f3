"""Runs one step of the model: a batch of chunks in, one result per chunk out.

The runner has blocks by number and no state of sequences: every decision of the scheduler (chunking, batch,
block table) is a `StepBatch`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import torch
from torch import Tensor

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.resources.engine_memory import EngineMemory, engine_memory, longest_sequence_tokens
from warmfleet_runtime.memory import memory_limit_bytes, own_memory_bytes
from warmfleet_worker.attention.backend import AttentionBackend
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine.batch import Chunk, ChunkResult, ScoreRequest, StepBatch, StepResult
from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.kv_cache.layout import KvLayout, KvShape, kv_layout
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.runner.memory_budget import (
    DeviceMemory,
    NotEnoughMemory,
    memory_refusal,
    share_of_device_bytes,
)
from warmfleet_worker.runner.sampler import sample
from warmfleet_worker.runner.scoring import row_slices, score, score_rows

_T = TypeVar("_T")

DtypeName = Literal["Auto", "Float32", "BFloat16", "Float16", "Float64"]

DTYPES: Final[dict[str, torch.dtype]] = {
    "Float32": torch.float32,
    "BFloat16": torch.bfloat16,
    "Float16": torch.float16,
    "Float64": torch.float64,
}

_CPU_INFO: Final = Path("/proc/cpuinfo")
_BFLOAT16_UNITS: Final = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""x86 and Arm names of instructions that multiply bfloat16 in hardware."""


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
    """Of weights, activations and KV. Auto: bfloat16 where the device multiplies it in hardware."""
    max_model_length_tokens: int = 0
    """Longest sequence; 0, or more than the model was trained for, means the model's own limit."""
    threads: int = 0
    """CPU threads of this process's kernels; 0 leaves torch's default."""
    poison: bool = False
    """Fill blocks with NaN before their first use; for tests."""


class ModelRunner:
    """A model, its KV arena and an attention backend, ready to execute steps. Made by `load_runner`.

    runner = load_runner(model_path, RunnerSettings(kv_cache_bytes=2**30))
    result = runner.execute(StepBatch(chunks))
    result.chunks[0].next_token_id  # None unless the chunk asked for a sample
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: KvArena,
        attention: AttentionBackend,
        *,
        max_model_length_tokens: int,
    ) -> None:
        self.max_model_length_tokens = max_model_length_tokens
        self._decoder = decoder
        self._arena = arena
        self._attention = attention
        self._device = arena.storage.device

    @property
    def model(self) -> ModelConfig:
        """The model's configuration."""
        return self._decoder.config

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
        return self._device.type

    @property
    def exact(self) -> bool:
        """False: torch's kernels round a row differently in another batch, or beside other rows."""
        return False

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN, so that a read of stale memory is noticed."""
        self._arena.poison_blocks(block_ids)

    def block_bytes(self, block_id: int) -> bytes:
        """Keys and values of a block, as stored."""
        return self._arena.block_bytes(block_id)

    @torch.inference_mode()
    def execute(self, batch: StepBatch) -> StepResult:
        """Compute and store the KV of every chunk, and sample for the chunks that ask for it.

        Results are in the order of `batch.chunks`; `seconds` is wall time.
        """
        started = time.perf_counter()
        chunks = batch.chunks
        results = self._results(chunks) if chunks else ()
        return StepResult(chunks=results, seconds=time.perf_counter() - started)

    def _results(self, chunks: tuple[Chunk, ...]) -> tuple[ChunkResult, ...]:
        hidden = self._decoder.hidden_states(
            self._as_index([token for chunk in chunks for token in chunk.token_ids]),
            self._as_index([position for chunk in chunks for position in _positions(chunk)]),
            self._attention.plan(chunks),
        )
        finite = _finite_chunks(hidden, chunks)
        sampled, logprobs = self._sample(hidden, chunks)
        prompt_logprobs = self._score_prompts(hidden, chunks)
        return tuple(
            ChunkResult(
                sequence_id=chunk.sequence_id,
                # Finite hidden states may still overflow in the head: no token, no commit.
                finite=ok and (chunk.sample is None or token is not None),
                next_token_id=token if ok else None,
                logprobs=own if ok else None,
                prompt_logprobs=before if ok else None,
            )
            for chunk, ok, token, own, before in zip(
                chunks, finite, sampled, logprobs, prompt_logprobs, strict=True
            )
        )

    def _sample(
        self, hidden: Tensor, chunks: tuple[Chunk, ...]
    ) -> tuple[list[int | None], list[TokenLogprobs | None]]:
        """Next token of each chunk, and its log probabilities if its request asks.

        The head runs over the last rows of the chunks that want a token.
        """
        rows: list[int] = []
        end = 0
        for chunk in chunks:
            end += len(chunk.token_ids)
            if chunk.sample is not None:
                rows.append(end - 1)
        if not rows:
            return [None] * len(chunks), [None] * len(chunks)
        logits = self._decoder.logits(
            hidden if len(rows) == hidden.shape[0] else hidden[self._as_index(rows)]
        )
        if logits.dtype != torch.float64:
            logits = logits.float()
        requests = [chunk.sample for chunk in chunks if chunk.sample is not None]
        tokens = sample(logits, requests)
        logprobs = score_rows(logits, tokens, [request.parameters.logprobs for request in requests])
        return _spread(tokens, chunks), _spread(logprobs, chunks)

    def _score_prompts(self, hidden: Tensor, chunks: tuple[Chunk, ...]) -> list[TokenLogprobs | None]:
        """Prompt log probabilities of the chunks that request them; the head runs in slices of rows."""
        scores: list[TokenLogprobs | None] = []
        start = 0
        for chunk in chunks:
            scores.append(None if chunk.score is None else self._score(hidden[start:], chunk.score))
            start += len(chunk.token_ids)
        return scores

    def _score(self, hidden: Tensor, request: ScoreRequest) -> TokenLogprobs:
        rows = hidden[request.first : request.first + len(request.next_token_ids)]
        slices = row_slices(len(request.next_token_ids), self.model.vocab_size)
        pieces = (self._decoder.logits(rows[piece]) for piece in slices)
        return score(pieces, request.next_token_ids, request.top)

    def _as_index(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def load_runner(model_path: Path, settings: RunnerSettings) -> ModelRunner:
    """Load a Hugging Face model folder and allocate its KV arena; nothing large is allocated later.

    Raises:
        ModelError: The folder's configuration or weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
        NoDeviceMemory: A share of device memory is asked for on a CPU.
        NotEnoughMemory: On a CPU, weights, cache and workspace exceed the memory that this process may use.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = choose_dtype(settings.dtype, device)
    config = load_model_config(model_path)
    max_length = longest_sequence_tokens(model_size(config), settings.max_model_length_tokens)
    layout = kv_layout(
        KvShape(config.layers, config.kv_heads, config.head_dim, dtype.itemsize), settings.block_size_tokens
    )
    if settings.device_memory_percent and device.type == "cpu":
        raise NoDeviceMemory("a share of device memory needs a GPU; on a CPU give the KV cache's size")
    if not settings.device_memory_percent:
        _require_a_block(layout, settings.kv_cache_bytes)  # before the weights take their time
        if device.type == "cpu":
            _require_memory(_memory(config, settings, dtype))
    decoder = load_decoder(model_path, config, positions=max_length, dtype=dtype, device=device)
    kv_cache_bytes = settings.kv_cache_bytes
    if settings.device_memory_percent:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        memory = DeviceMemory(total_bytes=total_bytes, free_bytes=free_bytes)
        kv_cache_bytes = share_of_device_bytes(
            settings.device_memory_percent, memory, _memory(config, settings, dtype).workspace_bytes
        )
    total_blocks = _require_a_block(layout, kv_cache_bytes)
    arena = KvArena(layout, total_blocks, dtype, device, poison=settings.poison)
    attention = TorchGatherAttention(
        arena, heads=config.heads, window_tokens=config.window_tokens, max_context_tokens=max_length
    )
    return ModelRunner(decoder, arena, attention, max_model_length_tokens=max_length)


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
    )


def _require_memory(memory: EngineMemory) -> None:
    if refusal := memory_refusal(memory, own_memory_bytes(), memory_limit_bytes()):
        raise NotEnoughMemory(refusal)


def choose_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """Resolve "Auto": bfloat16 on a GPU that has it and on a CPU with units for it, else float32."""
    if name != "Auto":
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    cpu_info = _CPU_INFO.read_text() if _CPU_INFO.is_file() else ""
    return torch.bfloat16 if has_bfloat16_units(cpu_info) else torch.float32


def has_bfloat16_units(cpu_info: str) -> bool:
    """Whether a `/proc/cpuinfo` names bfloat16 instructions."""
    return any(
        not _BFLOAT16_UNITS.isdisjoint(line.partition(":")[2].split())
        for line in cpu_info.splitlines()
        if line.lower().startswith(("flags", "features"))
    )


def _spread(sampled: Sequence[_T | None], chunks: tuple[Chunk, ...]) -> list[_T | None]:
    """One value per chunk from one per chunk that wants a token."""
    values = iter(sampled)
    return [None if chunk.sample is None else next(values) for chunk in chunks]


def _positions(chunk: Chunk) -> range:
    return range(chunk.first_position, chunk.first_position + len(chunk.token_ids))


def _finite_chunks(hidden: Tensor, chunks: tuple[Chunk, ...]) -> list[bool]:
    """Whether every hidden state of each chunk is finite; a non-finite one stays so through the layers."""
    finite = hidden.isfinite().all(dim=1).tolist()
    verdicts = []
    start = 0
    for chunk in chunks:
        end = start + len(chunk.token_ids)
        verdicts.append(all(finite[start:end]))
        start = end
    return verdicts
