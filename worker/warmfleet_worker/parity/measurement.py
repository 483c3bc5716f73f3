"""Loads a model twice, as an engine does and as the reference does, and compares them on one short text."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.resources.engine_memory import EngineMemory, block_bytes, engine_memory
from warmfleet_runtime.memory import memory_limit_bytes, own_memory_bytes
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.parity.comparison import compare, trace_greedily
from warmfleet_worker.parity.reference import Reference
from warmfleet_worker.parity.report import ParityReport
from warmfleet_worker.parity.rounding import units_of
from warmfleet_worker.runner.memory_budget import NotEnoughMemory, memory_refusal
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES, RunnerSettings
from warmfleet_worker.runner.torch_model import DTYPES
from warmfleet_worker.settings import Dtype

ANSWER_TOKENS: Final = 24
_BLOCK_TOKENS: Final = 16
_PROMPT: Final = (
    "Dear Maria, I am writing to you from the train between the mountains and the sea. This morning we "
    "passed a lake so still that the clouds lay in it, and a man in a red boat who waved at us. Tomorrow"
)
_RANDOM_PROMPT_TOKENS: Final = 45
"""Of a model without a tokenizer."""
_WIDENED_COPIES: Final = 4
"""Of one layer: in float64, and what bounds need of it."""
_FLOAT64_BYTES: Final = 8


def measure(model_path: Path, settings: RunnerSettings) -> ParityReport:
    """Compare the kernels that an engine with these settings would use with the reference.

    Args:
        model_path: a model folder.
        settings: the sizes of cache and context are replaced by what the comparison needs.

    Raises:
        ModelError: the folder's files are missing, damaged or not supported.
        NotEnoughMemory: model and reference exceed the memory that this process may use.
    """
    config = load_model_config(model_path)
    prompt = _prompt(model_path, config)
    tokens = len(prompt) + ANSWER_TOKENS
    blocks = blocks_for(tokens, _BLOCK_TOKENS)
    kv_cache_bytes = _require_memory(config, settings.dtype, blocks, tokens)
    runner = load_runner(
        model_path,
        replace(
            settings,
            kv_cache_bytes=kv_cache_bytes,
            block_size_tokens=_BLOCK_TOKENS,
            max_model_length_tokens=tokens,
        ),
    )
    dtype = DTYPES[runner.dtype_name]
    with torch.inference_mode():
        # In three chunks and over blocks in descending order: so that neither is taken for granted.
        chunks = (_BLOCK_TOKENS + 1, 1, len(prompt) - _BLOCK_TOKENS - 2)
        trace = trace_greedily(
            runner.step_model,
            prompt,
            chunks,
            answer_tokens=ANSWER_TOKENS,
            block_ids=range(blocks - 1, -1, -1),
        )
        decoder = load_decoder(model_path, config, positions=1, dtype=dtype, device=torch.device("cpu"))
        found = compare(trace, Reference(decoder, tokens - 1), units_of(dtype))
    return ParityReport(
        model=str(model_path),
        dtype=runner.dtype_name,
        device=runner.device_name,
        kernels=runner.step_model.kernels,
        epsilon=torch.finfo(dtype).eps,
        factor=found.factor,
        prompt_tokens=len(prompt),
        answer_tokens=ANSWER_TOKENS,
        layers=found.layers,
        divergence=found.divergence,
        smallest_gap=found.smallest_gap,
    )


def _prompt(model_path: Path, config: ModelConfig) -> list[int]:
    if not (model_path / "tokenizer.json").is_file():
        draw = random.Random(3)  # noqa: S311 - no secret
        return [draw.randrange(config.vocab_size) for _ in range(_RANDOM_PROMPT_TOKENS)]
    token_ids = PromptEncoder(load_prompt_assets(model_path)).encode_text(_PROMPT)
    return [token_id % config.vocab_size for token_id in token_ids]


def _require_memory(config: ModelConfig, dtype: Dtype, blocks: int, tokens: int) -> int:
    """Bytes of the KV cache; there is room for the engine, the reference's weights and one of its layers."""
    model = model_size(config)
    element_bytes = ELEMENT_BYTES["Float32" if dtype == "Auto" else dtype]
    kv_cache_bytes = blocks * block_bytes(model, element_bytes=element_bytes, block_size_tokens=_BLOCK_TOKENS)
    engine = engine_memory(
        model,
        element_bytes=element_bytes,
        block_size_tokens=_BLOCK_TOKENS,
        kv_cache_bytes=kv_cache_bytes,
        max_model_length_tokens=tokens,
    )
    layer_bytes = _WIDENED_COPIES * _FLOAT64_BYTES * model.parameters // model.layers
    memory = EngineMemory(
        weights_bytes=2 * engine.weights_bytes,
        arena_bytes=engine.arena_bytes,
        workspace_bytes=engine.workspace_bytes + layer_bytes,
    )
    if refusal := memory_refusal(memory, own_memory_bytes(), memory_limit_bytes()):
        raise NotEnoughMemory(f"with a reference beside it {refusal}")
    return kv_cache_bytes
