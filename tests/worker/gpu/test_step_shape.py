"""Which steps a captured graph computes, and that a model takes it for those alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.gpu.step_shape import graph_shapes, smallest_with_room, step_shape
from warmfleet_worker.model.computed import StepRows
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

GREEDY = SampleRequest(SamplingParameters(temperature=0.0), output_index=0)


def decodes(count, sample=GREEDY):
    return [Chunk(sequence, (7 + sequence,), 0, (sequence,), sample) for sequence in range(count)]


SHAPES = graph_shapes(tile_tokens=32, most_blocks=100)


def graph_of(chunks):
    return smallest_with_room(step_shape(chunks, tile_tokens=32), SHAPES)


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (33, 48), (97, 128), (128, 128)]
)
def test_decodes_take_the_smallest_graph_with_a_row_for_each_sequence(count, rows):
    graph = graph_of(decodes(count))
    assert (graph.rows, graph.singles, graph.tiles) == (rows, rows, 0)


@pytest.mark.parametrize(
    ("prompts", "count", "rows"),
    [([2], 0, 16), ([33], 0, 64), ([30, 30], 4, 64), ([512], 0, 512), ([512], 1, 640), ([100], 128, 256)],
)
def test_prompts_take_the_smallest_graph_for_prompts(prompts, count, rows):
    chunks = [Chunk(900 + tokens, (1,) * tokens, 0, (0,), GREEDY) for tokens in prompts]
    graph = graph_of([*decodes(count), *chunks])
    assert graph.rows == rows
    assert graph.tiles > 0


@pytest.mark.parametrize(
    "chunks",
    [
        decodes(129),
        [Chunk(0, (1,) * 1025, 0, (0,), GREEDY)],
        [Chunk(sequence, (1, 2), 0, (0,), GREEDY) for sequence in range(100)],
    ],
    ids=["many decodes", "a long prompt", "many prompts"],
)
def test_a_step_that_no_graph_has_room_for_has_none(chunks):
    assert graph_of(chunks) is None


def test_a_step_whose_block_tables_are_too_long_for_a_graph_has_none():
    assert graph_of([Chunk(0, (1, 2), 0, range(SHAPES[-1].blocks), None)]).blocks == SHAPES[-1].blocks
    assert graph_of([Chunk(0, (1, 2), 0, range(SHAPES[-1].blocks + 1), None)]) is None


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 400)), min_size=1, max_size=40))
def test_a_graph_has_room_for_the_step_that_takes_it(sizes):
    chunks = [
        Chunk(index, (1,) * count, 0, range(blocks), None) for index, (count, blocks) in enumerate(sizes)
    ]
    counts = [count for count, _ in sizes]
    shape, graph = step_shape(chunks, 32), graph_of(chunks)
    assert shape.rows == sum(counts)
    assert shape.singles == counts.count(1)
    assert shape.blocks == sum(blocks for _, blocks in sizes)
    if graph is not None:
        assert graph.rows >= shape.rows
        assert graph.singles >= shape.singles
        assert graph.tiles >= shape.tiles
        assert graph.blocks >= shape.blocks


def test_as_many_graphs_are_captured_as_the_documents_state():
    assert len([shape for shape in SHAPES if shape.tiles == 0]) == 11
    assert len([shape for shape in SHAPES if shape.tiles]) == 15


class StepsWithGraphs:
    """In place of a GPU's: a model's own steps, with logits of all rows where a graph would compute them."""

    kernels = "triton"

    def __init__(self, model):
        self.model = model
        self.steps = model._steps
        self.graphs = []

    def rows(self, chunks):
        hidden = self.steps.rows(chunks).hidden
        self.graphs.append(len(chunks) if all(len(chunk.token_ids) == 1 for chunk in chunks) else None)
        return StepRows(hidden, self.model.logits(hidden) if self.graphs[-1] else None)


def test_a_model_gives_the_same_tokens_with_graphs_and_without(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    settings = RunnerSettings(
        kv_cache_bytes=2**22, dtype="Float32", block_size_tokens=16, cpu_kernels="Torch", threads=1
    )
    plain, model = (load_runner(folder, settings) for _ in range(2))
    steps = model.step_model._steps = StepsWithGraphs(model.step_model)
    prefill = [Chunk(9, tuple(range(1, 20)), 0, (9, 10), GREEDY)]
    some_wanted = [decodes(2)[0], decodes(2, sample=None)[1], *decodes(4)[2:]]
    batches = [prefill, decodes(3), some_wanted, [*prefill, *decodes(2)], decodes(1, sample=None)]

    def tokens(runner):
        results = [runner.execute(StepBatch(tuple(chunks))).chunks for chunks in batches]
        return [[(chunk.finite, chunk.token_ids) for chunk in chunks] for chunks in results]

    assert tokens(model) == tokens(plain)
    assert steps.graphs == [None, 3, 4, None, 1]
