"""By how much rounding can move what one layer computes: a bound for each of its values.

Probabilistic error analysis (Higham & Mary 2019, SIAM J. Sci. Comput. 41(5), A2815): each rounding changes a
value v by at most u |v|, u half the dtype's epsilon, independently and with mean zero. To first order an
error behind a layer is a sum of such errors times their derivatives, and by Hoeffding's inequality such a
sum exceeds `factor` x sqrt(sum of the squared bounds) with a probability of 2 exp(-factor^2 / 2).

So every value here carries the sum of squared bounds of its error. A product sum of n terms in float32 adds
at most n times float32's unit x sum |terms|, in any order and with any rounding of its additions. Where a
step rounds more often than an engine has to, as one that fuses less does, the larger number counts.
"""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import Linear, RmsNorm
from warmfleet_worker.model.rope import Rotation
from warmfleet_worker.model.transformer import DecoderLayer

FALSE_ALARM: Final = 1e-9
"""Probability that rounding alone moves any of the compared values beyond its bound."""


@dataclass(frozen=True, slots=True)
class Units:
    """Largest relative error of one rounding."""

    stored: float
    """To the dtype of weights, activations and KV."""
    summed: float
    """Of sums, which are in float32 at least."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Values, and for each the sum of squared bounds of its errors. Same shape."""

    value: Tensor
    square: Tensor

    def rounded(self, unit: float, times: int = 1) -> "Uncertain":
        return Uncertain(self.value, self.square + times * (unit * self.value).square())


def units_of(dtype: torch.dtype) -> Units:
    """Units of an engine of this dtype, the reference's own rounding included."""
    stored = torch.finfo(dtype).eps / 2
    reference = torch.finfo(torch.float64).eps / 2
    summed = min(stored, torch.finfo(torch.float32).eps / 2)
    return Units(stored + reference, summed + reference)


def factor(values: int) -> float:
    """How many square roots of a sum of squares bound so many values with probability 1 - FALSE_ALARM."""
    return math.sqrt(2 * math.log(2 * values / FALSE_ALARM))


def layer_deviation(
    config: ModelConfig, layer: DecoderLayer, hidden: Tensor, rotation: Rotation, units: Units
) -> Tensor:
    """For each value behind a layer the root of its sum of squared bounds, [tokens, hidden].

    Args:
        config: of the model.
        layer: in float64.
        hidden: what the engine's layer reads, whole sequence from position 0: taken to be exact.
        rotation: of those positions, in float64.
        units: of the engine.
    """
    exact = Uncertain(hidden, torch.zeros_like(hidden))
    attended = _attention(config, layer, _norm(layer.input_norm, exact, units), rotation, units)
    middle = _sum(exact, _linear(layer.output, attended, units), units)
    fused = _linear(layer.gate_up, _norm(layer.mlp_norm, middle, units), units)
    output = _sum(middle, _linear(layer.down, _swiglu(fused, units), units), units)
    return output.square.sqrt()


def head_deviation(norm: RmsNorm, head: Linear, hidden: Tensor, units: Units) -> Tensor:
    """The same for the scores of rows behind the last layer, [rows, vocabulary]."""
    exact = Uncertain(hidden, torch.zeros_like(hidden))
    return _linear(head, _norm(norm, exact, units), units).square.sqrt()


def _sum(a: Uncertain, b: Uncertain, units: Units) -> Uncertain:
    return Uncertain(a.value + b.value, a.square + b.square).rounded(units.stored)


def _linear(linear: Linear, x: Uncertain, units: Units) -> Uncertain:
    weight = linear.weight
    terms = x.value.abs() @ weight.abs().T
    square = x.square @ weight.square().T + (weight.shape[1] * units.summed * terms).square()
    return Uncertain(linear(x.value), square).rounded(units.stored, times=1 if linear.bias is None else 2)


def _norm(norm: RmsNorm, x: Uncertain, units: Units) -> Uncertain:
    width = x.value.shape[-1]
    inverse = (x.value.square().mean(-1, keepdim=True) + norm.epsilon).rsqrt()
    value = norm(x.value)
    # Each input, and all of them through the mean of squares.
    through_mean = (x.value.square() * x.square).sum(-1, keepdim=True) * (inverse.square() / width).square()
    square = (norm.weight * inverse).square() * x.square + value.square() * through_mean
    summed = (width * units.summed * value).square()
    return Uncertain(value, square + summed).rounded(units.stored, times=3)


def _attention(
    config: ModelConfig, layer: DecoderLayer, x: Uncertain, rotation: Rotation, units: Units
) -> Uncertain:
    """What the heads attend to, [tokens, heads x head_dim]."""
    heads = config.heads + 2 * config.kv_heads
    fused = _linear(layer.qkv, x, units)
    shape = (x.value.shape[0], heads, config.head_dim)
    value, square = fused.value.view(shape), fused.square.view(shape)

    def part(first: int, count: int, norm: RmsNorm | None) -> Uncertain:
        one = Uncertain(value[:, first : first + count], square[:, first : first + count])
        return _rotated(_norm(norm, one, units) if norm is not None else one, rotation, units)

    query = part(0, config.heads, layer.query_norm)
    key = part(config.heads, config.kv_heads, layer.key_norm)
    first_value = config.heads + config.kv_heads
    values = Uncertain(value[:, first_value:], square[:, first_value:])
    group = config.heads // config.kv_heads
    outputs = [
        _attended(config, _head(query, head), _head(key, head // group), _head(values, head // group), units)
        for head in range(config.heads)
    ]
    return Uncertain(
        torch.cat([one.value for one in outputs], -1), torch.cat([one.square for one in outputs], -1)
    )


def _head(x: Uncertain, head: int) -> Uncertain:
    return Uncertain(x.value[:, head], x.square[:, head])


def _rotated(x: Uncertain, rotation: Rotation, units: Units) -> Uncertain:
    half = x.value.shape[-1] // 2
    rolled, rolled_square = x.value.roll(half, -1), x.square.roll(half, -1)
    direct, across = x.value * rotation.cosine, rolled * rotation.signed_sine
    square = x.square * rotation.cosine.square() + rolled_square * rotation.signed_sine.square()
    # Of the table, of the first product, of the sum.
    rounded = 3 * (units.stored * (direct.abs() + across.abs())).square()
    return Uncertain(direct + across, square + rounded)


def _attended(
    config: ModelConfig, query: Uncertain, key: Uncertain, value: Uncertain, units: Units
) -> Uncertain:
    """One head's attention, [tokens, head_dim]; `key` and `value` are those of its KV head."""
    tokens, head_dim = query.value.shape
    # An engine may scale and round queries and keys before their product.
    query, key = query.rounded(units.stored), key.rounded(units.stored)
    scale = 1 / math.sqrt(head_dim)
    scores = scale * query.value @ key.value.T
    terms = scale * query.value.abs() @ key.value.abs().T
    square = scale**2 * (query.square @ key.value.square().T + query.value.square() @ key.square.T)
    square += (head_dim * units.summed * terms).square() + (units.stored * scores).square()

    age = torch.arange(tokens)[:, None] - torch.arange(tokens)
    visible = (age >= 0) & (age < config.window_tokens) if config.window_tokens else age >= 0
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1)
    output = weights @ value.value
    # d output / d score j = weight j (value j - output); each weight is rounded itself: exp, sum, quotient.
    moved = weights.square() * (square + 4 * units.stored**2)
    of_scores = (
        moved @ value.value.square()
        - 2 * output * (moved @ value.value)
        + output.square() * moved.sum(-1, keepdim=True)
    ).clamp_min(0)
    of_values = weights.square() @ value.square
    summed = (tokens * units.summed * (weights @ value.value.abs())).square()
    return Uncertain(output, of_scores + of_values + summed).rounded(units.stored)


def _swiglu(fused: Uncertain, units: Units) -> Uncertain:
    gate, up = fused.value.chunk(2, -1)
    gate_square, up_square = fused.square.chunk(2, -1)
    sigmoid = gate.sigmoid()
    silu = gate * sigmoid
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    square = (slope * up).square() * gate_square + silu.square() * up_square
    return Uncertain(silu * up, square).rounded(units.stored, times=3)
