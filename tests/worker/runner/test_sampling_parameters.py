"""Every sampling parameter of the API changes the answer exactly as a naive sampler does.

The oracle takes transformers' logits of the whole sequence for every token and samples in numpy; the worker
answers over HTTP.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers

from warmfleet_testing.engine.naive_sampler import Logits, naive_sample, token_counts
from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS
from warmfleet_testing.engine.worker_process import TINY_NAME
from warmfleet_worker.engine.batch import SampleRequest
from warmfleet_worker.engine.sampling_params import SamplingParameters

PROMPT = [70, 81, 92, 81, 70, 130, 140, 150]
OUTPUT_TOKENS = 24
END_ID = TINY_CONTROL_TOKENS.index("<|im_end|>")
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 11}
GREEDY: dict[str, Any] = {"temperature": 0.0}
REPEATING: dict[str, Any] = {**GREEDY, "logit_bias": {"100": 15, "101": 14.5}}
"""A few tokens come again and again: what penalties are for."""
ENDING = {str(END_ID): 6.5}
"""Makes the end token likely: the draw reaches it soon."""

Oracle = Callable[[list[int]], Logits]


@pytest.fixture(scope="module")
def last_logits(tiny_served_path: Path) -> Oracle:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_served_path, dtype=torch.float32).eval()

    def logits(token_ids: list[int]) -> Logits:
        with torch.inference_mode():
            values: Logits = model(torch.tensor([token_ids])).logits[0, -1].numpy()
        return values

    return logits


@pytest.mark.parametrize(
    ("fields", "without"),
    [
        pytest.param({**DRAWN, "temperature": 1.6}, {"temperature"}, id="temperature"),
        pytest.param({**DRAWN, "top_k": 3}, {"top_k"}, id="top_k"),
        pytest.param({**DRAWN, "top_p": 0.61}, {"top_p"}, id="top_p"),
        pytest.param({**DRAWN, "min_p": 0.317}, {"min_p"}, id="min_p"),
        pytest.param({**DRAWN, "seed": 12}, {"seed"}, id="seed"),
        pytest.param({**GREEDY, "logit_bias": {"90": 4.25, "91": -100}}, {"logit_bias"}, id="logit_bias"),
        pytest.param({**REPEATING, "presence_penalty": 1.9}, {"presence_penalty"}, id="presence_penalty"),
        pytest.param({**REPEATING, "frequency_penalty": 1.3}, {"frequency_penalty"}, id="frequency_penalty"),
        pytest.param(
            {**REPEATING, "repetition_penalty": 1.7}, {"repetition_penalty"}, id="repetition_penalty"
        ),
        pytest.param({**DRAWN, "max_tokens": 5}, {"max_tokens"}, id="max_tokens"),
        pytest.param(
            {**DRAWN, "logit_bias": ENDING, "ignore_eos": False, "min_tokens": 20},
            {"min_tokens"},
            id="min_tokens",
        ),
        pytest.param({**DRAWN, "logit_bias": ENDING}, set(), id="ignore_eos"),
        pytest.param(
            {**DRAWN, "top_k": 6, "top_p": 0.77, "min_p": 0.06, "presence_penalty": 0.4},
            {"top_k", "top_p", "min_p", "presence_penalty"},
            id="mixed",
        ),
    ],
)
def test_a_parameter_changes_the_answer_as_in_the_naive_sampler(client, last_logits, fields, without):
    neutral = {name: value for name, value in fields.items() if name not in without}
    if "temperature" in without:
        neutral["temperature"] = 1.0
    elif "seed" in without:
        neutral["seed"] = DRAWN["seed"]
    elif not without:  # the test's own default is to ignore the end token
        neutral["ignore_eos"] = False

    changed = answered(client, fields)

    assert changed == naive_answer(last_logits, fields)
    assert changed != naive_answer(last_logits, neutral)


def test_a_stop_token_ends_the_answer_where_the_naive_sampler_meets_it(client, last_logits):
    plain, _ = naive_answer(last_logits, DRAWN)
    stop = plain[7]

    stopped = answered(client, {**DRAWN, "stop_token_ids": [stop, 9999]})

    assert stopped == (plain[: plain.index(stop) + 1], "stop")


def test_choice_i_is_the_naive_answer_to_seed_plus_i(client, last_logits):
    choices = completion(client, {**DRAWN, "n": 3})["choices"]

    for index, choice in enumerate(choices):
        expected, _ = naive_answer(last_logits, {**DRAWN, "seed": DRAWN["seed"] + index})
        assert choice["token_ids"] == expected
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


def test_a_stop_string_ends_the_naive_answers_text_before_it(client, last_logits):
    allowed = {str(token_id): 30 for token_id in range(70, 80)}  # letters and digits only
    fields = {**DRAWN, "logit_bias": allowed, "temperature": 2.0}
    plain, _ = naive_answer(last_logits, fields)
    text = client.post("/detokenize", json={"tokens": plain}).json()["prompt"]
    stop = text[6:9]

    choice = completion(client, {**fields, "stop": ["never there", stop]})["choices"][0]

    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == plain[: text.index(stop) + 3]


def test_log_probabilities_and_echo_change_no_token(client, last_logits):
    expected, _ = naive_answer(last_logits, DRAWN)

    choice = completion(client, {**DRAWN, "logprobs": 4, "echo": True})["choices"][0]

    assert choice["token_ids"] == expected
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT) + OUTPUT_TOKENS


def completion(client: httpx.Client, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": TINY_NAME, "prompt": PROMPT, "max_tokens": OUTPUT_TOKENS, "return_token_ids": True}
    response = client.post("/v1/completions", json={"ignore_eos": True, **body, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def answered(client: httpx.Client, fields: dict[str, Any]) -> tuple[list[int], str]:
    choice = completion(client, fields)["choices"][0]
    return choice["token_ids"], choice["finish_reason"]


def naive_answer(last_logits: Oracle, fields: dict[str, Any]) -> tuple[list[int], str]:
    """Ids and finish reason of one request, computed anew for every token."""
    asked = {"ignore_eos": True, "max_tokens": OUTPUT_TOKENS, "min_tokens": 0, **fields}
    # Absent fields have the defaults of the API.
    ends = set() if asked.get("ignore_eos") else {END_ID}
    parameters = SamplingParameters(
        stop_token_ids=frozenset(ends),
        min_output_tokens=asked["min_tokens"],
        logit_bias={int(token_id): bias for token_id, bias in asked.get("logit_bias", {}).items()},
        **{
            name: asked[name]
            for name in (
                *("temperature", "top_k", "top_p", "min_p", "seed"),
                *("presence_penalty", "frequency_penalty", "repetition_penalty"),
            )
            if name in asked
        },
    )
    output: list[int] = []
    while len(output) < asked["max_tokens"]:
        known = (*PROMPT, *output)
        request = SampleRequest(parameters, len(output), token_counts(known, len(output)))
        output.append(naive_sample(np.array(last_logits(list(known))), request))
        if output[-1] in ends:
            return output, "stop"
    return output, "length"
