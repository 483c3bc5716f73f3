"""A step by the kernels is what the plain decoder computes, for every shape of model, context and batch.

Where there is no GPU Triton's interpreter runs the kernels' own code (`tests/conftest.py` chooses it); with
`-m gpu` a GPU runs them.
"""

import random

import pytest
import torch

from warmfleet_testing.engine.runner_driver import DEVICES
from warmfleet_testing.engine.tiny_models import FAMILIES, tiny_model_folder
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.decoder import DecodeLayers
from warmfleet_worker.gpu.inputs import DecodeInputs
from warmfleet_worker.gpu.launches import gated, splits_of
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.layers import swiglu
from warmfleet_worker.model.loader import load_decoder

BLOCK = 4
BLOCKS = 120
MOST_TOKENS = 200
MODELS = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    ("llama", {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 112, "head_dim": 8}),
    ("llama", {"num_attention_heads": 8, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("llama", {"attention_bias": True}),
    ("llama", {"head_dim": None, "hidden_size": 96}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
]


class Loaded:
    """One model with two arenas: of plain PyTorch, and of the kernels."""

    def __init__(self, folder, dtype, device, processors=2):
        self.config = load_model_config(folder)
        self.device = torch.device(device)
        self.decoder = load_decoder(
            folder, self.config, positions=MOST_TOKENS, dtype=dtype, device=self.device
        )
        shape = KvShape(self.config.layers, self.config.kv_heads, self.config.head_dim, dtype.itemsize)
        row = self.config.head_dim * dtype.itemsize
        layout = kv_layout(
            shape, BLOCK, head_padding_bytes=row, layer_padding_bytes=2 * row, block_padding_bytes=3 * row
        )
        self.plain, self.arena = (KvArena(layout, BLOCKS, dtype, self.device, poison=True) for _ in range(2))
        self.attention = TorchGatherAttention(
            self.plain,
            heads=self.config.heads,
            window_tokens=self.config.window_tokens,
            max_context_tokens=MOST_TOKENS,
        )
        self.layers = DecodeLayers(self.decoder, self.arena, processors=processors)
        self.inputs = DecodeInputs(8, MOST_TOKENS // BLOCK, self.device)

    @torch.inference_mode()
    def compute_plainly(self, chunks):
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        positions = [
            chunk.first_position + offset for chunk in chunks for offset in range(len(chunk.token_ids))
        ]
        hidden = self.decoder.hidden_states(
            torch.tensor(tokens, device=self.device),
            torch.tensor(positions, device=self.device),
            self.attention.plan(chunks),
        )
        return hidden, self.decoder.logits(hidden).float()

    @torch.inference_mode()
    def compute_by_kernels(self, chunks, rows, trace=None):
        self.inputs.write(chunks, rows)
        return self.layers(self.inputs.token_ids(rows), self.inputs.tables(rows), trace)


def prefilled(loaded, lengths, seed=1):
    """Sequences of these lengths, in shuffled blocks of both arenas, and the next token of each."""
    draw = random.Random(seed)
    blocks = list(range(BLOCKS))
    draw.shuffle(blocks)
    decodes = []
    for sequence, length in enumerate(lengths):
        own = tuple(blocks.pop() for _ in range(-(-(length + 1) // BLOCK)))
        tokens = tuple(draw.randrange(512) for _ in range(length + 1))
        if length:
            loaded.compute_plainly([Chunk(sequence, tokens[:-1], 0, own, None)])
        decodes.append(Chunk(sequence, tokens[-1:], length, own, None))
    loaded.arena.storage.copy_(loaded.plain.storage)
    return decodes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "overrides"), MODELS, ids=str)
@pytest.mark.parametrize("processors", [2, 132], ids=["whole contexts", "split contexts"])
def test_a_step_is_that_of_the_plain_decoder(family, overrides, processors, device, tmp_path):
    folder = tiny_model_folder(family, tmp_path, **overrides)
    loaded = Loaded(folder, torch.float32, device, processors)
    assert (splits_of(8, loaded.config.kv_heads, processors) > 1) is (processors > 2)
    chunks = prefilled(loaded, [0, 1, BLOCK - 1, 63, 64, 150])

    expected, expected_logits = loaded.compute_plainly(chunks)
    hidden, logits = loaded.compute_by_kernels(chunks, rows=8)

    torch.testing.assert_close(hidden[:6], expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits[:6], expected_logits, rtol=0, atol=1e-4)
    assert hidden.isfinite().all(), "rows without a sequence"
    for chunk in chunks:
        for block in chunk.block_ids:
            ours, theirs = (
                torch.frombuffer(bytearray(arena.block_bytes(block)), dtype=torch.float32)
                for arena in (loaded.arena, loaded.plain)
            )
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_written_but_the_keys_and_values_of_the_step(device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [5, 9])
    before = [loaded.arena.block_bytes(block) for block in range(BLOCKS + 1)]

    loaded.compute_by_kernels(chunks, rows=8)

    changed = {block for block in range(BLOCKS + 1) if loaded.arena.block_bytes(block) != before[block]}
    assert changed == {chunk.block_ids[-1] for chunk in chunks}


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_of_fewer_sequences_leaves_those_of_the_one_before_alone(device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [5, 9, 3, 6, 2, 7, 10, 1])
    loaded.compute_by_kernels(chunks, rows=8)
    loaded.arena.storage.zero_()

    loaded.compute_by_kernels(chunks[:2], rows=8)

    written = {block for block in range(BLOCKS + 1) if any(loaded.arena.block_bytes(block))}
    assert written == {chunk.block_ids[-1] for chunk in chunks[:2]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [1, 1023, 1024, 3000])
def test_the_activation_is_that_of_plain_pytorch_for_any_number_of_columns(columns, device):
    gate_up = torch.randn(3, 2 * columns, generator=torch.Generator().manual_seed(columns)).to(device)
    torch.testing.assert_close(gated(gate_up), swiglu(gate_up))


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float16),  # Triton's interpreter has no products of bfloat16
        *(pytest.param("cuda", dtype, marks=pytest.mark.gpu) for dtype in (torch.float16, torch.bfloat16)),
    ],
)
def test_smaller_dtypes_differ_by_rounding(device, dtype, tmp_path):
    folder = tiny_model_folder("qwen3", tmp_path)
    loaded, exact = Loaded(folder, dtype, device), Loaded(folder, torch.float64, device)
    chunks = prefilled(loaded, [3, 40, 130])
    exact.plain.storage.copy_(loaded.plain.storage)

    hidden, _ = loaded.compute_by_kernels(chunks, rows=3)
    plain, _ = loaded.compute_plainly(chunks)
    expected, _ = exact.compute_plainly(chunks)

    # Not further from the exact result than the plain decoder, which rounds more often.
    ours, theirs = ((rows.double() - expected).abs().max() for rows in (hidden, plain))
    assert ours <= 1.5 * theirs
    assert ours > 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_trace_is_what_each_layer_reads(device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [7, 30])
    theirs = []
    loaded.decoder.hidden_states(
        torch.tensor([chunk.token_ids[0] for chunk in chunks], device=loaded.device),
        torch.tensor([chunk.first_position for chunk in chunks], device=loaded.device),
        loaded.attention.plan(chunks),
        theirs,
    )

    trace = []
    loaded.compute_by_kernels(chunks, 2, trace)

    torch.testing.assert_close(torch.stack(trace), torch.stack(theirs), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("sequences", "kv_heads", "processors", "splits"),
    [(1, 8, 132, 32), (8, 8, 132, 8), (128, 8, 132, 1), (1, 1, 2, 8), (64, 2, 1, 1), (3, 8, 132, 16)],
)
def test_contexts_are_split_so_that_all_processors_have_work(sequences, kv_heads, processors, splits):
    assert splits_of(sequences, kv_heads, processors) == splits
