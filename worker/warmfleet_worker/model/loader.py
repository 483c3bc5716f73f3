"""A checkpoint's weights as torch tensors, in the fused layout of the decoder."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from warmfleet_worker.model.checkpoint import BFLOAT16, AnyArray, CheckpointReader, open_checkpoint
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import Linear, RmsNorm
from warmfleet_worker.model.rope import RotaryTable
from warmfleet_worker.model.shapes import EMBEDDING, FINAL_NORM, HEAD
from warmfleet_worker.model.transformer import Decoder, DecoderLayer


def load_decoder(
    model_path: Path, config: ModelConfig, *, positions: int, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Load the weights of a model folder as `dtype` onto `device`.

    `positions` is the longest sequence that will be run; it sizes the table of rotations.

    Raises:
        ModelError: A file or tensor is missing, unexpected, damaged or misshapen; named.
    """
    weights = _Weights(open_checkpoint(model_path, config), config, dtype, device)
    embedding = weights.stack(EMBEDDING)
    return Decoder(
        config=config,
        embedding=embedding,
        layers=tuple(weights.layer(index) for index in range(config.layers)),
        final_norm=weights.norm(FINAL_NORM),
        head=Linear(embedding if config.tied_embeddings else weights.stack(HEAD)),
        rotary=RotaryTable(config, positions, dtype, device),
    )


def _as_tensor(array: AnyArray) -> Tensor:
    """The memory of an array as a tensor; torch does not know numpy's bfloat16 by itself."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class _Weights:
    """Reads the parts of a decoder, each into memory of its own."""

    def __init__(
        self, reader: CheckpointReader, config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._reader = reader
        self._config = config
        self._dtype = dtype
        self._device = device

    def stack(self, *names: str) -> Tensor:
        """The named tensors below each other, as one."""
        first = 0
        rows: Tensor | None = None
        for name in names:
            part = _as_tensor(self._reader.tensor(name))
            if rows is None:
                shape = (self._reader.rows(*names), *part.shape[1:])
                rows = torch.empty(shape, dtype=self._dtype, device=self._device)
            rows[first : first + part.shape[0]].copy_(part)
            first += part.shape[0]
        assert rows is not None
        return rows

    def layer(self, index: int) -> DecoderLayer:
        config = self._config
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return DecoderLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm.weight"),
            qkv=self._linear(
                f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj", bias=config.qkv_bias
            ),
            query_norm=self.norm(f"{attention}.q_norm.weight") if config.query_key_norm else None,
            key_norm=self.norm(f"{attention}.k_norm.weight") if config.query_key_norm else None,
            output=self._linear(f"{attention}.o_proj", bias=config.output_bias),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self._linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self._linear(f"{mlp}.down_proj"),
        )

    def norm(self, name: str) -> RmsNorm:
        return RmsNorm(self.stack(name), self._config.norm_epsilon)

    def _linear(self, *modules: str, bias: bool = False) -> Linear:
        """The named projections fused into one."""
        return Linear(
            self.stack(*(f"{module}.weight" for module in modules)),
            self.stack(*(f"{module}.bias" for module in modules)) if bias else None,
        )
