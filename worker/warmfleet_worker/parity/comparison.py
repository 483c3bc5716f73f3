"""Runs a model through an engine's kernels and through the reference, and measures where they differ."""

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.parity.reference import Reference
from warmfleet_worker.parity.report import Divergence, LayerDifference
from warmfleet_worker.parity.rounding import Units, factor, head_deviation, layer_deviation
from warmfleet_worker.runner.step_model import StepModel

HEAD: Final = "head"


class EngineTrace(NamedTuple):
    """What an engine computed for a prompt and its greedy answer; on the CPU, in float64."""

    token_ids: list[int]
    """Prompt and answer."""
    prompt_tokens: int
    hidden: Tensor
    """What each layer read, and the last one wrote: [layers + 1, tokens, hidden]; not of the last token."""
    logits: Tensor
    """Of each token of the answer, [answer, vocabulary]."""

    @property
    def answer(self) -> list[int]:
        return self.token_ids[self.prompt_tokens :]


def trace_greedily(
    model: StepModel[Any],
    prompt: Sequence[int],
    chunk_tokens: Sequence[int],
    *,
    answer_tokens: int,
    block_ids: Sequence[int],
) -> EngineTrace:
    """Prefill `prompt` in chunks of the given lengths, then decode one token after the other.

    Args:
        model: with room for prompt and answer in `block_ids`.
        prompt: token ids.
        chunk_tokens: their sum is the length of the prompt.
        answer_tokens: at least 1.
        block_ids: the sequence's block table.
    """
    assert sum(chunk_tokens) == len(prompt)
    token_ids, states, scores, first = list(prompt), [], [], 0
    for length in [*chunk_tokens, *[1] * (answer_tokens - 1)]:
        chunk = Chunk(1, token_ids[first : first + length], first, tuple(block_ids), None)
        traced = model.hidden_after_layers([chunk])
        states.append(torch.as_tensor(traced).cpu().double())
        first += length
        if first == len(token_ids):
            logits = torch.as_tensor(model.on_host(model.logits(traced[-1][-1:])))[0].double()
            scores.append(logits)
            token_ids.append(int(logits.argmax()))
    return EngineTrace(token_ids, len(prompt), torch.cat(states, 1), torch.stack(scores))


class Comparison(NamedTuple):
    """Differences by layer, and what a greedy choice would have been."""

    factor: float
    layers: list[LayerDifference]
    divergence: Divergence | None
    smallest_gap: float


def compare(engine: EngineTrace, reference: Reference, units: Units) -> Comparison:
    """Where the engine differs from the reference, and whether rounding explains it."""
    computed = engine.token_ids[:-1]
    scale = factor(engine.hidden[1:].numel() + engine.logits.numel())
    expected = reference.embedded(computed)
    layers = [_embedding(engine.hidden[0], expected)]
    for index, layer in enumerate(reference.layers()):
        read, written = engine.hidden[index], engine.hidden[index + 1]
        expected = reference.after(layer, expected)
        own = (written - reference.after(layer, read)).abs()
        deviation = layer_deviation(reference.config, layer, read, reference.rotation, units)
        layers.append(_difference(str(index), written, expected, own, scale * deviation))
    first = engine.prompt_tokens - 1
    scores = reference.logits(expected[first:])
    rows = engine.hidden[-1][first:]
    own = (engine.logits - reference.logits(rows)).abs()
    deviation = torch.cat([head_deviation(norm, head, rows, units) for norm, head in reference.head()], -1)
    layers.append(_difference(HEAD, engine.logits, scores, own, scale * deviation))
    best = scores.topk(2).values
    gaps = best[:, 0] - best[:, 1]
    return Comparison(scale, layers, _divergence(engine, scores, gaps), gaps.min().item())


def _embedding(read: Tensor, expected: Tensor) -> LayerDifference:
    """Nothing is computed before the first layer: no difference is explained."""
    own = (read - expected).abs()
    return _difference("embedding", read, expected, own, torch.zeros_like(own))


def _difference(name: str, ours: Tensor, theirs: Tensor, own: Tensor, bound: Tensor) -> LayerDifference:
    shares = torch.where(own == 0, torch.zeros_like(own), own / bound)
    return LayerDifference(
        name=name,
        difference=_largest((ours - theirs).abs()),
        largest_value=_largest(theirs.abs()),
        own_difference=_largest(own),
        of_bound=_largest(shares),
    )


def _largest(values: Tensor) -> float:
    """The largest finite number stands for what is none: JSON has no other."""
    return values.nan_to_num(nan=sys.float_info.max).max().item()


def _divergence(engine: EngineTrace, scores: Tensor, gaps: Tensor) -> Divergence | None:
    chosen = scores.argmax(-1).tolist()
    for index, (ours, theirs) in enumerate(zip(engine.answer, chosen, strict=True)):
        if ours != theirs:
            return Divergence(
                index=index,
                engine_token_id=ours,
                reference_token_id=theirs,
                gap=gaps[index].item(),
                difference=_largest((engine.logits[index] - scores[index]).abs()),
            )
    return None
