"""The parts of a decoder as functions over tensors, named as in the papers."""

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b, with W as [outputs, inputs]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    weight: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020, arXiv:2002.05202) of the fused [tokens, 2 x intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
