"""A step by the kernels is what the plain decoder computes, for every shape of model, context and batch.

Where there is no GPU Triton's interpreter runs the kernels' own code (`tests/conftest.py` chooses it); with
`-m gpu` a GPU runs them.
"""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_testing.engine.runner_driver import DEVICES
from warmfleet_testing.engine.tiny_models import TINY_FAMILIES, tiny_model_folder
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.decoder import KernelLayers
from warmfleet_worker.gpu.inputs import StepInputs
from warmfleet_worker.gpu.launches import LayerCache, attend, gated, rotate_and_store, splits_of
from warmfleet_worker.gpu.step_shape import StepShape, step_shape
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.layers import swiglu
from warmfleet_worker.model.loader import load_decoder

BLOCK = 4
BLOCKS = 120
MOST_TOKENS = 200
MODELS = [
    *((family, {}) for family in TINY_FAMILIES),
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
        self.layers = KernelLayers(self.decoder, self.arena, processors=processors)
        self.room = StepInputs(StepShape(8, 8, 0, 8 * MOST_TOKENS // BLOCK), 1, self.device)

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
    def compute_decodes_by_kernels(self, chunks, trace=None):
        """As a graph does: in memory with room for eight, which was used before."""
        self.room.write(chunks)
        hidden, normed = self.layers(self.room, trace)
        return hidden[: len(chunks)], self.decoder.head(normed)[: len(chunks)].float()

    @torch.inference_mode()
    def compute_by_kernels(self, chunks, tile_tokens, spare=(0, 0, 0, 0)):
        shape = step_shape(chunks, tile_tokens)
        sizes = zip((shape.rows, shape.singles, shape.tiles, shape.blocks), spare, strict=True)
        inputs = StepInputs(StepShape(*map(sum, sizes)), tile_tokens, self.device)
        inputs.write(chunks)
        hidden, normed = self.layers(inputs)
        return hidden[: shape.rows], self.decoder.head(normed)[: shape.rows].float()


def prefilled(loaded, lengths, counts=None, seed=1):
    """Sequences of these lengths, in shuffled blocks of both arenas; of each the next token, or `counts`."""
    draw = random.Random(seed)
    blocks = list(range(BLOCKS))
    draw.shuffle(blocks)
    chunks = []
    for sequence, (length, count) in enumerate(zip(lengths, counts or [1] * len(lengths), strict=True)):
        own = tuple(blocks.pop() for _ in range(-(-(length + count) // BLOCK)))
        tokens = tuple(draw.randrange(512) for _ in range(length + count))
        if length:
            loaded.compute_plainly([Chunk(sequence, tokens[:length], 0, own, None)])
        chunks.append(Chunk(sequence, tokens[length:], length, own, None))
    loaded.arena.storage.copy_(loaded.plain.storage)
    return chunks


def assert_same_keys_and_values(loaded, chunks):
    for chunk in chunks:
        for block in chunk.block_ids:
            ours, theirs = (
                torch.frombuffer(bytearray(arena.block_bytes(block)), dtype=torch.float32)
                for arena in (loaded.arena, loaded.plain)
            )
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "overrides"), MODELS, ids=str)
@pytest.mark.parametrize("processors", [1, 16], ids=["whole contexts", "split contexts"])
def test_a_step_is_that_of_the_plain_decoder(family, overrides, processors, device, tmp_path):
    folder = tiny_model_folder(family, tmp_path, **overrides)
    loaded = Loaded(folder, torch.float32, device, processors)
    assert (splits_of(8, loaded.config.kv_heads, processors) > 1) is (processors > 1)
    chunks = prefilled(loaded, [0, 1, BLOCK - 1, 63, 64, 150])

    expected, expected_logits = loaded.compute_plainly(chunks)
    hidden, logits = loaded.compute_decodes_by_kernels(chunks)

    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-4)
    assert_same_keys_and_values(loaded, chunks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "overrides"), MODELS, ids=str)
def test_a_step_of_prompts_and_decodes_is_that_of_the_plain_decoder(family, overrides, device, tmp_path):
    loaded = Loaded(tiny_model_folder(family, tmp_path, **overrides), torch.float32, device, processors=1)
    # Decodes between prompts; prompts from the start and behind a cached prefix, a tile, more and less.
    chunks = prefilled(loaded, lengths=[70, 0, 33, 0, 61, 1], counts=[1, 9, 2, 1, 4, 5])

    expected, expected_logits = loaded.compute_plainly(chunks)
    hidden, logits = loaded.compute_by_kernels(chunks, tile_tokens=4, spare=(3, 2, 1, 7))

    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-4)
    assert_same_keys_and_values(loaded, chunks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "overrides"), [("llama", {}), MODELS[-1]], ids=["all before", "a window"])
def test_programs_share_the_contexts_of_prompts(family, overrides, device, tmp_path):
    loaded = Loaded(tiny_model_folder(family, tmp_path, **overrides), torch.float32, device, processors=16)
    chunks = prefilled(loaded, lengths=[180, 0, 130], counts=[5, 1, 8])
    assert splits_of(4, loaded.config.kv_heads, 16) > 2, "more than one part has tokens"

    expected, _ = loaded.compute_plainly(chunks)
    hidden, _ = loaded.compute_by_kernels(chunks, tile_tokens=4)

    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 6])
def test_blocks_that_left_the_window_are_never_read(count, device, tmp_path):
    family, overrides = MODELS[-1]
    window = overrides["sliding_window"]
    loaded = Loaded(tiny_model_folder(family, tmp_path, **overrides), torch.float32, device)
    chunks = prefilled(loaded, lengths=[99], counts=[count])
    left = chunks[0].block_ids[: (99 + 1 - window) // BLOCK]
    for arena in (loaded.plain, loaded.arena):
        arena.poison_blocks(left)

    expected, _ = loaded.compute_plainly(chunks)
    hidden, _ = loaded.compute_by_kernels(chunks, tile_tokens=8)

    assert expected.isfinite().all()
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)


def one_layer(device, tokens, dtype=torch.float32, block_padding_bytes=0, blocks=8):
    """Heads 2 to 1 of 16 elements, and inputs of a chunk whose first token is at 100 + its own blocks."""
    shape = KvShape(layers=1, kv_heads=1, head_dim=16, element_bytes=dtype.itemsize)
    layout = kv_layout(shape, 16, block_padding_bytes=block_padding_bytes)
    # Memory that is never touched takes none.
    storage = torch.empty(blocks * layout.block_stride_bytes // dtype.itemsize, dtype=dtype, device=device)
    block_ids = list(range(blocks - 8, blocks))
    chunks = [Chunk(0, (1,) * tokens, 100, block_ids, None)]
    inputs = StepInputs(step_shape(chunks, 8), 8, torch.device(device))
    inputs.write(chunks)
    return LayerCache(storage, layout, 0), inputs.tables, block_ids


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("processors", [1, 16], ids=["whole contexts", "split contexts"])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("size", [20.0, -20.0])
def test_large_scores_of_either_sign_neither_overflow_nor_vanish(size, tokens, processors, device):
    cache, tables, block_ids = one_layer(device, tokens)
    draw = torch.Generator().manual_seed(1)
    pages = cache.storage.view(8, 2, 16, 16)  # [blocks, keys and values, tokens, head_dim]
    pages.copy_(torch.randn(pages.shape, generator=draw))
    pages[:, 0] += size  # with queries of 20: scores of some +-1,600
    query = (20 + torch.randn(tokens, 2, 16, generator=draw)).to(device)
    keys, values = pages[block_ids].transpose(0, 1).flatten(1, 2).double()
    scores = torch.einsum("thd,kd->thk", query.double(), keys) / 4
    late = (
        torch.arange(128, device=device)[None, None]
        > 100 + torch.arange(tokens, device=device)[:, None, None]
    )
    expected = scores.masked_fill(late, -torch.inf).softmax(-1) @ values

    attend(query, cache, tables, window_tokens=0, processors=processors)

    assert scores.abs().min() > 1000
    torch.testing.assert_close(query.double(), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_behind_two_to_the_31_elements_are_written_and_read(device):
    # given nine blocks, of which the newest token's begins behind them
    cache, tables, block_ids = one_layer(
        device, 1, torch.float16, block_padding_bytes=2**29 + 2**27, blocks=9
    )
    begins = [block * cache.layout.block_stride_bytes // 2 for block in block_ids]
    assert begins[100 // 16] > 2**31
    newest, others = begins[100 // 16], [begin for begin in begins if begin != begins[100 // 16]]
    for begin in others:
        cache.storage[begin : begin + 512] = 0.5
    cache.storage[newest : newest + 512] = 0.5
    projected = cache.storage.new_ones((1, 4, 16))
    query = cache.storage.new_empty((1, 2, 16))
    table = cache.storage.new_ones((200, 1, 16))

    # when
    rotate_and_store(projected, query, None, table, 0 * table, cache, tables)
    query.zero_()  # all keys count alike
    attend(query, cache, tables, window_tokens=0, processors=1)

    # then the value that was written counts among 100 others
    written = cache.storage[newest : newest + 512].view(2, 16, 16)
    assert (written[:, 100 % 16] == 1).all()
    assert (written == 0.5).sum() == 480
    torch.testing.assert_close(query, torch.full_like(query, (0.5 * 100 + 1) / 101), rtol=0, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("counts", [[7, 9], [1, 1], [2]], ids=str)
def test_a_step_without_one_kind_of_chunk_is_computed(counts, device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [5] * len(counts), counts)
    expected, _ = loaded.compute_plainly(chunks)
    hidden, _ = loaded.compute_by_kernels(chunks, tile_tokens=8)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 70)), min_size=1, max_size=6),
    tile_tokens=st.sampled_from([1, 2, 8, 32]),
    spare=st.integers(0, 3),
)
def test_every_row_is_in_one_tile_of_its_sequence(chunks, tile_tokens, spare):
    step = [
        Chunk(sequence, tuple(range(count)), first, tuple(range(first + count)), None)
        for sequence, (first, count) in enumerate(chunks)
    ]
    shape = step_shape(step, tile_tokens)
    room = StepShape(shape.rows + spare, shape.singles + spare, shape.tiles + spare, shape.blocks + spare)
    inputs = StepInputs(room, tile_tokens, torch.device("cpu"))
    inputs.write([Chunk(0, (7,), 0, (9,), None)])  # nothing of a step before may be left
    inputs.write(step)
    tables = inputs.tables

    rows = []
    for tiles in tables.tile_kinds:
        parts = tiles.part_rows.tolist()
        used = []
        for row, tokens, part in zip(
            *(x.tolist() for x in (tiles.first_rows, tiles.counts, tiles.first_parts)), strict=True
        ):
            assert 0 <= tokens <= tiles.most_tokens
            assert (row < 0) is (tokens == 0)
            own = list(range(row, row + tokens))
            assert parts[part : part + tokens] == own or not tokens
            used += own
            assert len({tables.first_block[row].item() for row in own}) <= 1
        assert [row for row in parts if row >= 0] == used
        rows += used
        seen = tables.positions[tiles.first_rows[tiles.counts > 0].long()].tolist()
        assert tiles.most_tokens == 1 or seen == sorted(seen, reverse=True), "what sees most comes first"
    assert sorted(rows) == list(range(shape.rows))
    positions = [first + offset for first, count in chunks for offset in range(count)]
    assert tables.positions.tolist() == [*positions, *[-1] * spare]


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_written_but_the_keys_and_values_of_the_step(device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [5, 9])
    before = [loaded.arena.block_bytes(block) for block in range(BLOCKS + 1)]

    loaded.compute_decodes_by_kernels(chunks)

    changed = {block for block in range(BLOCKS + 1) if loaded.arena.block_bytes(block) != before[block]}
    assert changed == {chunk.block_ids[-1] for chunk in chunks}


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_of_fewer_sequences_leaves_those_of_the_one_before_alone(device, tmp_path):
    loaded = Loaded(tiny_model_folder("llama", tmp_path), torch.float32, device)
    chunks = prefilled(loaded, [5, 9, 3, 6, 2, 7, 10, 1])
    loaded.compute_decodes_by_kernels(chunks)
    loaded.arena.storage.zero_()

    loaded.compute_decodes_by_kernels(chunks[:2])

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

    hidden, _ = loaded.compute_decodes_by_kernels(chunks)
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
    loaded.compute_decodes_by_kernels(chunks, trace)

    torch.testing.assert_close(torch.stack(trace)[:, :2], torch.stack(theirs), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("sequences", "kv_heads", "processors", "splits"),
    [(1, 8, 132, 32), (8, 8, 132, 8), (128, 8, 132, 1), (1, 1, 2, 8), (64, 2, 1, 1), (3, 8, 132, 16)],
)
def test_contexts_are_split_so_that_all_processors_have_work(sequences, kv_heads, processors, splits):
    assert splits_of(sequences, kv_heads, processors) == splits
