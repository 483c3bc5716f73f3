"""transformers as the reference for a step without a KV cache. A development dependency: may be absent."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch

from warmfleet_cli.bench.cache.generation import NextToken


def transformers_step(model_path: Path, dtype: torch.dtype) -> tuple[str, NextToken] | None:
    """Name with version, and the greedy step without a cache; None if transformers is not installed.

    Like its `generate`, the step computes logits for the last position only.
    """
    if importlib.util.find_spec("transformers") is None:
        return None
    import transformers  # noqa: PLC0415 - optional, and seconds to import

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path, dtype=dtype, local_files_only=True, use_safetensors=True
    ).eval()

    @torch.inference_mode()
    def step(token_ids: Sequence[int]) -> int:
        logits = model(torch.tensor([token_ids]), use_cache=False, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())

    return f"transformers {transformers.__version__}", step
