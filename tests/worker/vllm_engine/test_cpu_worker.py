"""A seeded prompt that a step of vLLM computes in part, on a CPU, whose generators have no offset."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import engine_arguments
from warmfleet_worker.vllm_engine.cpu import worker as worker_module
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


class Runner:
    """Collects log probabilities as vLLM's does: of a step's tokens, each with a row of the vocabulary."""

    def __init__(self, prompts):
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 1000)
        self.requests = {
            one: SimpleNamespace(prompt=prompt, num_computed_tokens=0, found=[])
            for one, prompt in prompts.items()
        }
        self.num_prompt_logprobs = dict.fromkeys(prompts, 1)
        self.most_rows = 0
        self.offsets = {}

    def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens):
        complete = {}
        for one in list(self.num_prompt_logprobs):
            tokens = num_scheduled_tokens.get(one)
            if tokens is None:
                continue
            request, offset = self.requests[one], self.offsets[one]
            remaining = len(request.prompt) - request.num_computed_tokens - 1
            if tokens > remaining:
                tokens = remaining
                complete[one] = request.found
                del self.num_prompt_logprobs[one]
            self.most_rows = max(self.most_rows, tokens)
            request.found += hidden_states[offset : offset + tokens]
        return complete

    def compute(self, step):
        self.offsets, states = {}, []
        for one, tokens in step.items():
            self.offsets[one] = len(states)
            first = self.requests[one].num_computed_tokens
            states += [(one, position) for position in range(first, first + tokens)]
        complete = self._get_prompt_logprobs_dict(states, step)
        for one, tokens in step.items():
            self.requests[one].num_computed_tokens += tokens
        return complete


@pytest.mark.parametrize("prompt_tokens", [1, 2, 9, 10, 11, 30, 31])
def test_log_probabilities_of_prompts_are_collected_by_slices(monkeypatch, prompt_tokens):
    class Device:
        def init_device(self):
            self.model_runner = Runner({"a": range(prompt_tokens), "b": range(25)})

    monkeypatch.setattr(worker_module, "SLICE_BYTES", 4 * 1000 * 10)
    worker = seeded(Device)()
    worker.init_device()
    runner = worker.model_runner

    # when both prompts begin in a step, and the second one ends in the next
    complete = runner.compute({"a": prompt_tokens, "b": 12})
    complete |= runner.compute({"a": 1, "b": 13})
    complete |= runner.compute({"a": 1, "b": 1})

    assert complete["a"] == [("a", position) for position in range(prompt_tokens - 1)]
    assert complete["b"] == [("b", position) for position in range(24)]
    assert 0 < runner.most_rows <= 10
    assert runner.requests["b"].num_computed_tokens == 26


def test_it_computes_on_cpus_alone():
    settings = EngineSettings(model_path="/m", block_size_tokens=32)

    name = engine_arguments(settings, on_cpu=True)["worker_cls"]

    assert name == "warmfleet_worker.vllm_engine.cpu.worker.SeededCpuWorker"
    assert "worker_cls" not in engine_arguments(settings, on_cpu=False)
