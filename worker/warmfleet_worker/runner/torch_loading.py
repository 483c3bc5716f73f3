"""Loads a model that PyTorch computes: on a GPU, or on a CPU without the native step."""

import structlog
import torch

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.runner.memory_budget import (
    DeviceMemory,
    NotEnoughMemory,
    device_refusal,
    share_of_device_bytes,
)
from warmfleet_worker.runner.runner_settings import LoadPlan
from warmfleet_worker.runner.torch_model import DTYPES, TorchModel
from warmfleet_worker.runner.torch_steps import PlainSteps, TorchSteps
from warmfleet_worker.settings import Dtype

_log = structlog.get_logger(__name__)


def load_on_cpu(plan: LoadPlan) -> TorchModel:
    """Load it for this machine's cores.

    Raises:
        ModelError: The weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
    """
    if plan.settings.threads:
        torch.set_num_threads(plan.settings.threads)
    blocks = plan.blocks(plan.settings.kv_cache_bytes)
    return _torch_model(plan, _decoder(plan, torch.device("cpu")), blocks)


def load_on_device(plan: LoadPlan) -> TorchModel:
    """Load it into a GPU's memory.

    Raises:
        ModelError: The weights are missing, damaged or not supported.
        KvCacheTooSmall: The cache would hold no block.
        NotEnoughMemory: Weights, cache and workspace exceed what is free on the device.
    """
    device = torch.device("cuda")
    # cuDNN's attention makes a plan for each length of a context: 25 ms, measured, in every step of a decode.
    torch.backends.cuda.enable_cudnn_sdp(False)
    kv_cache_bytes, percent = plan.settings.kv_cache_bytes, plan.settings.device_memory_percent
    if not percent:
        plan.blocks(kv_cache_bytes)  # before the weights take their time
        if refusal := device_refusal(plan.memory, _device_memory(device)):
            raise NotEnoughMemory(refusal)
    decoder = _decoder(plan, device)
    if percent:
        workspace_bytes = plan.memory.workspace_bytes
        kv_cache_bytes = share_of_device_bytes(percent, _device_memory(device), workspace_bytes)
    return _torch_model(plan, decoder, plan.blocks(kv_cache_bytes))


def device_dtype() -> Dtype:
    """What Auto means on this machine's GPU."""
    return "BFloat16" if torch.cuda.is_bf16_supported() else "Float16"


def _device_memory(device: torch.device) -> DeviceMemory:
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return DeviceMemory(total_bytes=total_bytes, free_bytes=free_bytes)


def _decoder(plan: LoadPlan, device: torch.device) -> Decoder:
    return load_decoder(
        plan.model_path,
        plan.config,
        positions=plan.max_length_tokens,
        dtype=DTYPES[plan.dtype],
        device=device,
    )


def _torch_model(plan: LoadPlan, decoder: Decoder, blocks: int) -> TorchModel:
    embedding = decoder.embedding
    arena = KvArena(plan.layout, blocks, embedding.dtype, embedding.device, poison=plan.settings.poison)
    steps = _gpu_steps(plan, decoder, arena) if embedding.device.type == "cuda" else None
    return TorchModel(decoder, arena, steps or _plain_steps(plan, decoder, arena))


def _plain_steps(plan: LoadPlan, decoder: Decoder, arena: KvArena) -> TorchSteps:
    attention = TorchGatherAttention(
        arena,
        heads=plan.config.heads,
        window_tokens=plan.config.window_tokens,
        max_context_tokens=plan.max_length_tokens,
    )
    return PlainSteps(decoder, attention)


def _gpu_steps(plan: LoadPlan, decoder: Decoder, arena: KvArena) -> TorchSteps | None:
    if plan.dtype == "Float64":
        return None
    try:
        from warmfleet_worker.gpu.steps import GpuSteps  # noqa: PLC0415 - only a GPU's PyTorch has Triton

        return GpuSteps(decoder, arena, max_context_tokens=plan.max_length_tokens)
    except torch.OutOfMemoryError:
        raise NotEnoughMemory(
            "weights and KV cache leave too little of the GPU's memory for the graphs of steps: "
            "a smaller KV cache is needed"
        ) from None
    except Exception as error:  # noqa: BLE001 - such as no C compiler, which Triton needs: PyTorch computes too
        torch.cuda.synchronize()  # raises where the device is lost, which no PyTorch computes on
        _log.warning("steps are computed by PyTorch alone, which is far slower", reason=str(error))
        return None
