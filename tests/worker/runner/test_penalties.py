"""Bias, penalties and least length through the whole engine, against transformers' logits and numpy.

The oracle computes the whole sequence anew for every token and changes its logits one by one; the engine
decodes in a batch, in chunks, with paged KV, and is preempted once.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers

from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.engine_runs import IDENTITY
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

OUTPUT_TOKENS = 40
BLOCK = 16
CHANGES = {
    "plain": {},
    "bias": {"logit_bias": {5: 2.0, 9: -100.0, 40: 1.5}},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.7},
    "repetition": {"repetition_penalty": 1.4},
    "encouraged": {"repetition_penalty": 0.6, "presence_penalty": -0.4},
    "everything": {
        "logit_bias": {7: 1.0},
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
    },
}
Logits = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model_folder("llama", tmp_path_factory.mktemp("penalties") / "tiny")


@pytest.fixture(scope="module")
def last_logits(folder) -> Logits:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def logits(token_ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([token_ids])).logits[0, -1].numpy()

    return logits


def test_a_batch_of_changed_sequences_equals_numpy(folder, last_logits):
    # given one sequence per change, and one that may not end before its 30th token
    prompts = [[3 + row, 17, 5, 90 + row, 17, 33] * 4 for row in range(len(CHANGES) + 1)]
    asked = [{**change, "max_output_tokens": OUTPUT_TOKENS} for change in CHANGES.values()]
    plain = naive_output(last_logits, prompts[-1], SamplingParameters(max_output_tokens=OUTPUT_TOKENS))
    asked.append(
        {
            "max_output_tokens": OUTPUT_TOKENS,
            "min_output_tokens": 30,
            "stop_token_ids": frozenset(plain[:10]),
        }
    )
    sampling = [SamplingParameters(temperature=0.0, **parameters) for parameters in asked]

    # when the pool is too small for all of them
    outputs, preempted_sequences = engine_outputs(folder, prompts, sampling, blocks=26)

    # then
    expected = [naive_output(last_logits, *row) for row in zip(prompts, sampling, strict=True)]
    assert outputs == expected
    assert preempted_sequences > 0
    # and every change did change something
    for prompt, parameters, output in list(zip(prompts, sampling, outputs, strict=True))[1:]:
        same_length = SamplingParameters(max_output_tokens=len(output))
        assert output != naive_output(last_logits, prompt, same_length), parameters


def engine_outputs(folder, prompts, sampling, *, blocks):
    config = load_model_config(folder)
    block_bytes = 2 * config.layers * config.kv_heads * config.head_dim * 4 * BLOCK
    settings = RunnerSettings(kv_cache_bytes=blocks * block_bytes, dtype="Float32", threads=1, poison=True)
    engine = Engine(
        load_runner(folder, settings),
        IDENTITY,
        "epoch",
        BLOCK,
        0,
        SchedulerSettings(max_batched_tokens=19, max_model_length_tokens=256),
        poison=True,
    )
    for row, (prompt, parameters) in enumerate(zip(prompts, sampling, strict=True)):
        engine.add(add_sequence(row, prompt, sampling=parameters))
    outputs = [[] for _ in prompts]
    preempted_sequences = 0
    while engine.has_work:
        report = engine.step()
        preempted_sequences += report.preempted_sequences
        for update in report.updates:
            assert not update.error
            outputs[update.sequence_id] += update.token_ids
    return outputs, preempted_sequences


def naive_output(last_logits: Logits, prompt: list[int], parameters: SamplingParameters) -> list[int]:
    output: list[int] = []
    while len(output) < parameters.max_output_tokens:
        logits = last_logits([*prompt, *output]).copy()
        for token in range(len(logits)):
            logits[token] += parameters.logit_bias.get(token, 0)
            if token in prompt or token in output:
                factor = parameters.repetition_penalty
                logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
            logits[token] -= parameters.frequency_penalty * output.count(token)
            logits[token] -= parameters.presence_penalty * (token in output)
            if token in parameters.stop_token_ids and len(output) < parameters.min_output_tokens:
                logits[token] = -np.inf
        output.append(int(np.argmax(logits)))
        if output[-1] in parameters.stop_token_ids:
            break
    return output
