"""Which steps a captured graph computes, and that a model takes it for those alone."""

import pytest
import torch

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.gpu.graph_rows import graph_rows
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

GREEDY = SampleRequest(SamplingParameters(temperature=0.0), output_index=0)


def decodes(count, sample=GREEDY):
    return [Chunk(sequence, (7 + sequence,), 0, (sequence,), sample) for sequence in range(count)]


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (33, 48), (97, 128), (128, 128), (129, None)]
)
def test_a_step_takes_the_smallest_graph_with_a_row_for_each_sequence(count, rows):
    assert graph_rows(decodes(count)) == rows


def test_a_step_with_a_longer_chunk_has_none():
    assert graph_rows([*decodes(2), Chunk(2, (1, 2), 0, (2,), GREEDY)]) is None


class RecordedGraphs:
    """In place of captured graphs: the decoder of a model without any, and what it was asked for."""

    def __init__(self, model):
        self.model = model
        self.rows = []

    def run(self, chunks, rows):
        self.rows.append(rows)
        hidden = self.model._hidden_states(chunks)
        padding = torch.full((rows - len(chunks), hidden.shape[1]), torch.nan)
        padded = torch.cat((hidden, padding))
        return padded[: len(chunks)], self.model.logits(padded)[: len(chunks)]


def test_a_model_gives_the_same_tokens_with_graphs_and_without(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    settings = RunnerSettings(
        kv_cache_bytes=2**22, dtype="Float32", block_size_tokens=16, cpu_kernels="Torch", threads=1
    )
    plain, model = (load_runner(folder, settings) for _ in range(2))
    graphs = model.step_model._graphs = RecordedGraphs(model.step_model)
    prefill = [Chunk(9, tuple(range(1, 20)), 0, (9, 10), GREEDY)]
    some_wanted = [decodes(2)[0], decodes(2, sample=None)[1], *decodes(4)[2:]]
    steps = [prefill, decodes(3), some_wanted, [*prefill, *decodes(2)], decodes(1, sample=None)]

    def tokens(runner):
        results = [runner.execute(StepBatch(tuple(chunks))).chunks for chunks in steps]
        return [[(chunk.finite, chunk.token_ids) for chunk in chunks] for chunks in results]

    assert tokens(model) == tokens(plain)
    assert graphs.rows == [4, 4, 1]
