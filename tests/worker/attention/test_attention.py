"""The reference against a dense computation in float64, and the torch backend against both.

Every case runs over poisoned memory and a shuffled block table, with packed and padded strides.
"""

import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_testing.engine.runner_driver import DEVICES, AllocatedMemory
from warmfleet_worker.attention.backend import UnsupportedLayout
from warmfleet_worker.attention.grouping import FREE_PADDING_TOKENS, group_by_length
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.reference import reference_attention
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout

torch.set_num_threads(1)

LAYERS, HEAD_DIM, BLOCK = 2, 8, 4
PADDINGS = [
    pytest.param({}, id="packed"),
    pytest.param({"head_padding_bytes": 64}, id="padded heads"),
    pytest.param({"layer_padding_bytes": 3 * 64, "block_padding_bytes": 7 * 64}, id="padded layers"),
]


@dataclass
class Case:
    """Random queries, keys and values of one sequence per layer, and where its KV goes."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    block_ids: list[int]
    computed: int = 0

    def tokens(self) -> int:
        return self.query.shape[1]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_bytes_of_a_block_are_its_keys_and_values_alone(padding, dtype):
    shape = KvShape(LAYERS, kv_heads=2, head_dim=HEAD_DIM, element_bytes=dtype.itemsize)
    arena = KvArena(kv_layout(shape, BLOCK, **padding), 3, dtype, torch.device("cpu"), poison=True)
    arena.storage[: arena.layout.block_stride_bytes // dtype.itemsize].zero_()  # another padding than block 2
    written = torch.randn(LAYERS, 2, 2, BLOCK, HEAD_DIM).to(dtype)
    for layer, block in itertools.product(range(LAYERS), (0, 2)):
        arena.layer(layer)[block] = written[layer]

    assert arena.block_bytes(0) == arena.block_bytes(2) == written.view(torch.uint8).numpy().tobytes()
    assert arena.block_bytes(1) != arena.block_bytes(2)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (7, 1)])
@settings(max_examples=12)
@given(data=st.data())
def test_any_chunks_of_any_batch_equal_dense_attention(heads, kv_heads, padding, data):
    # given sequences of odd lengths, split at random, with and without a window
    window = data.draw(st.sampled_from([0, 1, 3, BLOCK, 2 * BLOCK + 1]), label="window")
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5), label="lengths")
    chooser = random.Random(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    arena = _arena(kv_heads, padding, blocks=60)
    backend = TorchGatherAttention(arena, heads=heads, window_tokens=window, max_context_tokens=40)
    cases = _cases(lengths, heads, kv_heads, arena.total_blocks, chooser)
    while pending := [case for case in cases if case.computed < case.tokens()]:
        # when a step computes a chunk of some of them
        batch = chooser.sample(pending, chooser.randint(1, len(pending)))
        sizes = [chooser.choice([1, 1, chooser.randint(1, c.tokens() - c.computed)]) for c in batch]
        outputs = _run_step(backend, batch, sizes)

        # then every layer equals dense attention
        for layer, output in enumerate(outputs):
            expected = torch.cat(
                [
                    _dense(case, layer, window)[case.computed : case.computed + size]
                    for case, size in zip(batch, sizes, strict=True)
                ]
            )
            torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
        for case, size in zip(batch, sizes, strict=True):
            case.computed += size


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (7, 1)])
@pytest.mark.parametrize("window", [0, 1, 3, BLOCK, 2 * BLOCK + 1])
def test_the_reference_equals_dense_attention(heads, kv_heads, padding, window):
    # given the keys and values of whole sequences in the arena
    arena = _arena(kv_heads, padding, blocks=60)
    cases = _cases([1, 4, 9, 30], heads, kv_heads, arena.total_blocks, random.Random(window))
    _run_step(_gather(arena, heads, window), cases, [case.tokens() for case in cases])

    for case in cases:
        # when any part of the sequence attends
        for first in {0, case.tokens() // 2, case.tokens() - 1}:
            case.computed = first
            outputs = _reference_step(arena, [case], [case.tokens() - first], window)

            # then it equals dense attention
            for layer, output in enumerate(outputs):
                torch.testing.assert_close(
                    output, _dense(case, layer, window)[first:], rtol=1e-10, atol=1e-12
                )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (7, 1)])
@settings(max_examples=12)
@given(data=st.data())
def test_any_chunks_of_any_batch_equal_the_reference(heads, kv_heads, padding, device, data):
    # given sequences of odd lengths, split at random, with and without a window
    window = data.draw(st.sampled_from([0, 1, 3, BLOCK, 2 * BLOCK + 1]), label="window")
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5), label="lengths")
    chooser = random.Random(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    arena = _arena(kv_heads, padding, blocks=60, device=device)
    backend = _gather(arena, heads, window)
    cases = _cases(lengths, heads, kv_heads, arena.total_blocks, chooser)

    while pending := [case for case in cases if case.computed < case.tokens()]:
        # when a step computes a chunk of some of them
        batch = chooser.sample(pending, chooser.randint(1, len(pending)))
        sizes = [chooser.choice([1, 1, chooser.randint(1, c.tokens() - c.computed)]) for c in batch]
        outputs = _run_step(backend, batch, sizes)

        # then every layer equals the reference over the same arena
        for output, expected in zip(outputs, _reference_step(arena, batch, sizes, window), strict=True):
            torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
        for case, size in zip(batch, sizes, strict=True):
            case.computed += size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2)])
@pytest.mark.parametrize("window", [0, 2 * BLOCK + 1])
@pytest.mark.parametrize("device", DEVICES)
def test_smaller_dtypes_differ_from_the_reference_by_rounding_only(dtype, heads, kv_heads, window, device):
    arena = _arena(kv_heads, {}, blocks=40, dtype=dtype, device=device)
    backend = _gather(arena, heads, window)
    cases = _cases([17, 33], heads, kv_heads, arena.total_blocks, random.Random(3))

    for sizes in ([16, 32], [1, 1]):
        outputs = _run_step(backend, cases, sizes, dtype)
        for output, expected in zip(
            outputs, _reference_step(arena, cases, sizes, window, dtype), strict=True
        ):
            assert expected.dtype == torch.float32
            torch.testing.assert_close(output.float(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
        for case, size in zip(cases, sizes, strict=True):
            case.computed += size


def test_blocks_that_left_the_window_are_never_read():
    # given a decoded sequence whose first blocks were freed and poisoned
    chooser = random.Random(1)
    arena = _arena(kv_heads=2, padding={}, blocks=20)
    backend = TorchGatherAttention(arena, heads=4, window_tokens=5, max_context_tokens=40)
    cases = _cases([31, 22], 4, 2, arena.total_blocks, chooser)
    _run_step(backend, cases, [30, 21])
    for case, size in zip(cases, [30, 21], strict=True):
        case.computed = size
        arena.poison_blocks(case.block_ids[: (size + 1 - 5) // BLOCK])

    # when both decode
    outputs = _run_step(backend, cases, [1, 1])

    # then no poison reaches the output
    for layer, output in enumerate(outputs):
        expected = torch.stack([_dense(case, layer, 5)[-1] for case in cases])
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)


def test_keys_and_values_are_read_back_as_they_are_stored():
    # given a chunk whose keys and values lose digits in the arena
    arena = _arena(kv_heads=1, padding={}, blocks=4)
    backend = TorchGatherAttention(arena, heads=1, window_tokens=0, max_context_tokens=8)
    query = torch.ones(2, 1, HEAD_DIM, dtype=torch.float64)
    key_value = torch.ones(2, 2, HEAD_DIM, dtype=torch.float64)

    # when they change between write and read
    plan = backend.plan([Chunk(1, [0, 0], 0, [2], None)])
    write = backend.write

    def write_less(layer, key_value, slots):
        write(layer, key_value, slots)
        arena.layer(layer)[2, 1] = 3.0

    backend.write = write_less
    output = plan(0, query, key_value)

    # then attention saw the arena, the step's own tokens included
    torch.testing.assert_close(output, torch.full_like(output, 3.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2)])
def test_smaller_dtypes_differ_from_float64_by_rounding_only(dtype, heads, kv_heads):
    chooser = random.Random(2)
    arena = _arena(kv_heads, {}, blocks=40, dtype=dtype)
    backend = TorchGatherAttention(arena, heads=heads, window_tokens=0, max_context_tokens=40)
    cases = _cases([17, 33], heads, kv_heads, arena.total_blocks, chooser)
    for case in cases:
        case.query, case.key, case.value = (t.to(dtype).double() for t in (case.query, case.key, case.value))

    _run_step(backend, cases, [16, 32], dtype)
    for case in cases:
        case.computed = case.tokens() - 1
    outputs = _run_step(backend, cases, [1, 1], dtype)

    for layer, output in enumerate(outputs):
        expected = torch.stack([_dense(case, layer, 0)[-1] for case in cases])
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_a_long_chunk_over_a_long_context_needs_little_memory():
    # given 2,048 new tokens after 6,144, which would have 9 x 2048 x 8192 scores: 604 MB
    shape = KvShape(layers=1, kv_heads=3, head_dim=64, element_bytes=4)
    arena = KvArena(kv_layout(shape, 16), 512, torch.float32, torch.device("cpu"))
    backend = TorchGatherAttention(arena, heads=9, window_tokens=0, max_context_tokens=8192)
    chunk = Chunk(1, [0] * 2048, 6144, list(range(512)), None)
    query, key_value = torch.randn(2048, 9, 64), torch.randn(2048, 6, 64)

    # when
    with torch.inference_mode(), AllocatedMemory() as allocations:
        backend.plan([chunk])(0, query, key_value)

    # then
    assert 0 < allocations.largest_tensor_bytes <= 20 * 1024 * 1024


def test_a_stride_that_is_no_whole_row_is_refused_by_name():
    shape = KvShape(layers=1, kv_heads=1, head_dim=8, element_bytes=4)
    arena = KvArena(kv_layout(shape, 4, layer_padding_bytes=4), 2, torch.float32, torch.device("cpu"))

    with pytest.raises(UnsupportedLayout, match="layer stride 260"):
        TorchGatherAttention(arena, heads=1, window_tokens=0, max_context_tokens=8)


@given(lengths=st.lists(st.integers(1, 9000), max_size=70), capacity=st.sampled_from([64, 8192]))
def test_decodes_are_grouped_without_loss_and_with_little_padding(lengths, capacity):
    groups = group_by_length(lengths, capacity)

    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        members = [lengths[index] for index in group]
        padded = max(members) * len(members)
        assert group == sorted(group)
        assert padded <= capacity or len(members) == 1
        assert padded - sum(members) <= max(sum(members), FREE_PADDING_TOKENS)


def _arena(kv_heads, padding, blocks, dtype=torch.float64, device="cpu"):
    shape = KvShape(layers=LAYERS, kv_heads=kv_heads, head_dim=HEAD_DIM, element_bytes=dtype.itemsize)
    layout = kv_layout(shape, BLOCK, **padding)
    return KvArena(layout, blocks, dtype, torch.device(device), poison=True)


def _cases(lengths, heads, kv_heads, blocks, chooser):
    generator = torch.Generator().manual_seed(chooser.randrange(2**32))
    free = chooser.sample(range(blocks), blocks)

    def draw(length, count):
        return torch.randn(LAYERS, length, count, HEAD_DIM, dtype=torch.float64, generator=generator)

    return [
        Case(
            query=draw(length, heads),
            key=draw(length, kv_heads),
            value=draw(length, kv_heads),
            block_ids=[free.pop() for _ in range(-(-length // BLOCK))],
        )
        for length in lengths
    ]


def _gather(arena, heads, window):
    return TorchGatherAttention(arena, heads=heads, window_tokens=window, max_context_tokens=40)


def _reference_step(arena, cases, sizes, window, dtype=torch.float64):
    """Per layer what `_run_step` must return, by the reference over what it has written."""
    return [
        torch.cat(
            [
                reference_attention(
                    arena,
                    layer,
                    case.query[layer, case.computed : case.computed + size].to(arena.storage.device, dtype),
                    case.block_ids,
                    case.computed,
                    window,
                )
                for case, size in zip(cases, sizes, strict=True)
            ]
        )
        for layer in range(LAYERS)
    ]


def _run_step(backend, cases, sizes, dtype=torch.float64):
    chunks = [
        Chunk(index, [0] * size, case.computed, case.block_ids, None)
        for index, (case, size) in enumerate(zip(cases, sizes, strict=True))
    ]
    plan = backend.plan(chunks)
    outputs = []
    for layer in range(LAYERS):
        query, key, value = (
            torch.cat(
                [
                    getattr(case, name)[layer, case.computed : case.computed + size]
                    for case, size in zip(cases, sizes, strict=True)
                ]
            ).to(backend._workspace.device, dtype)
            for name in ("query", "key", "value")
        )
        outputs.append(plan(layer, query, torch.cat((key, value), dim=1)))
    return outputs


def _dense(case, layer, window):
    query, key, value = case.query[layer], case.key[layer], case.value[layer]
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(HEAD_DIM)
    positions = torch.arange(case.tokens())
    visible = positions[None, :] <= positions[:, None]
    if window:
        visible &= positions[None, :] > positions[:, None] - window
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)
