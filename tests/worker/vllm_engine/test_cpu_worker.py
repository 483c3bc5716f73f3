"""A seeded prompt that a step of vLLM computes in part, on a CPU, whose generators have no offset."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments
from warmfleet_worker.vllm_engine.cpu.worker import seeded


class Worker:
    """As vLLM's: samples each row that has a generator by it, and moves back those of discarded tokens."""

    def __init__(self, *, rows, discarded):
        mask = np.array([row in discarded for row in range(rows)] + [True])  # what follows is of no request
        self.generators = {row: torch.Generator().manual_seed(row) for row in range(rows - 1)}
        self.model_runner = SimpleNamespace(
            input_batch=SimpleNamespace(generators=self.generators, num_reqs=rows),
            discard_request_mask=SimpleNamespace(np=mask),
        )

    def sample_tokens(self, grammar_output):
        drawn = {row: torch.rand(3, generator=one) for row, one in self.generators.items()}
        for row in self.model_runner.discard_request_mask.np[
            : self.model_runner.input_batch.num_reqs
        ].nonzero()[0]:
            if row in self.generators:
                self.generators[row].set_offset(self.generators[row].get_offset() - 4)
        if grammar_output == "fails":
            raise OSError
        return drawn


def draws(*seeds):
    return {seed: torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist() for seed in seeds}


def as_lists(drawn):
    return {row: values.tolist() for row, values in drawn.items()}


def test_vllms_own_worker_ends_with_such_a_prompt():
    with pytest.raises(RuntimeError, match="offset"):
        Worker(rows=3, discarded={1}).sample_tokens(None)


def test_a_discarded_token_leaves_its_generator_where_it_was():
    worker = seeded(Worker)(rows=4, discarded={1, 3})

    assert as_lists(worker.sample_tokens(None)) == draws(0, 2)

    worker.model_runner.discard_request_mask.np[:4] = False
    assert as_lists(worker.sample_tokens(None))[1] == draws(1)[1]


def test_a_step_that_fails_keeps_the_generators():
    worker = seeded(Worker)(rows=3, discarded={0})
    with pytest.raises(OSError):
        worker.sample_tokens("fails")
    assert set(worker.generators) == {0, 1}


def test_it_computes_on_cpus_alone():
    settings = EngineSettings(model_path="/m", block_size_tokens=32)

    name = engine_arguments(settings, on_cpu=True)["worker_cls"]

    assert name == "warmfleet_worker.vllm_engine.cpu.worker.SeededCpuWorker"
    assert "worker_cls" not in engine_arguments(settings, on_cpu=False)
