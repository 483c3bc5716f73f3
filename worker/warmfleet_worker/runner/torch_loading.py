"""Loads a model that PyTorch computes: on a GPU, or on a CPU without the native step."""

from pathlib import Path

import torch

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.kv_cache.layout import KvLayout
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.runner.memory_budget import (
    DeviceMemory,
    NotEnoughMemory,
    device_refusal,
    share_of_device_bytes,
)
from warmfleet_worker.runner.runner_settings import RunnerSettings, arena_layout, blocks_in, memory_of
from warmfleet_worker.runner.torch_model import DTYPES, TorchModel
from warmfleet_worker.settings import Dtype


def load_on_cpu(
    model_path: Path, config: ModelConfig, settings: RunnerSettings, dtype: Dtype, max_length_tokens: int
) -> TorchModel:
    """Load it for this machine's cores.

    Raises:
        ModelError: The weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    layout = arena_layout(config, settings, dtype)
    blocks = blocks_in(layout, settings.kv_cache_bytes)
    decoder = load_decoder(
        model_path, config, positions=max_length_tokens, dtype=DTYPES[dtype], device=torch.device("cpu")
    )
    return _torch_model(decoder, layout, blocks, settings, max_length_tokens)


def load_on_device(
    model_path: Path, config: ModelConfig, settings: RunnerSettings, dtype: Dtype, max_length_tokens: int
) -> TorchModel:
    """Load it into a GPU's memory.

    Raises:
        ModelError: The weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
        NotEnoughMemory: Weights, cache and workspace exceed what is free on the device.
    """
    device = torch.device("cuda")
    layout = arena_layout(config, settings, dtype)
    memory = memory_of(config, settings, dtype)
    if not settings.device_memory_percent:
        blocks_in(layout, settings.kv_cache_bytes)  # before the weights take their time
        if refusal := device_refusal(memory, _device_memory(device)):
            raise NotEnoughMemory(refusal)
    decoder = load_decoder(
        model_path, config, positions=max_length_tokens, dtype=DTYPES[dtype], device=device
    )
    kv_cache_bytes = settings.kv_cache_bytes
    if settings.device_memory_percent:
        kv_cache_bytes = share_of_device_bytes(
            settings.device_memory_percent, _device_memory(device), memory.workspace_bytes
        )
    return _torch_model(decoder, layout, blocks_in(layout, kv_cache_bytes), settings, max_length_tokens)


def device_dtype() -> Dtype:
    """What Auto means on this machine's GPU."""
    return "BFloat16" if torch.cuda.is_bf16_supported() else "Float16"


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
